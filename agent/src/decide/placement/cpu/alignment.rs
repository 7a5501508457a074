//! Whether the CPUs of containers lie as closely together as the policies ask for.

use super::CpuManager;
use super::topology::Level;
use crate::config::TopologyManagerPolicy;
use crate::model::cpuset::CpuSet;

/// Containers whose CPUs lie in more elements of a level than so many CPUs need. `None`: the
/// policies do not ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misaligned {
    pub core: Option<u64>,
    /// Caches of the last level.
    pub uncore: Option<u64>,
    /// Packages.
    pub socket: Option<u64>,
    pub numa: Option<u64>,
}

impl CpuManager {
    /// Of the containers that have CPUs alone.
    pub fn misaligned(&self) -> Misaligned {
        let settings = self.settings();
        let options = settings.options;
        let asks_for_nodes = settings.topology_policy != TopologyManagerPolicy::None
            && !options.distribute_cpus_across_numa;
        let containers = || self.state().containers.values().flat_map(|it| it.values());
        let count = |is_asked: bool, level| {
            is_asked.then(|| {
                let wide = containers().filter(|it| self.is_wide(level, it));
                wide.count() as u64
            })
        };
        Misaligned {
            core: count(options.full_pcpus_only, Level::Core),
            uncore: count(options.prefer_align_cpus_by_uncorecache, Level::Llc),
            socket: count(options.align_by_socket, Level::Package),
            numa: count(asks_for_nodes, Level::NumaNode),
        }
    }

    /// Whether fewer elements of the level could hold as many CPUs, were the machine empty.
    fn is_wide(&self, level: Level, cpus: &CpuSet) -> bool {
        let topology = &self.settings().topology;
        let mut sizes = topology.sizes(level);
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut held = 0;
        let needed = sizes.into_iter().take_while(|size| {
            let is_needed = held < cpus.len();
            held += size;
            is_needed
        });
        topology.n_spanned(level, cpus) > needed.count()
    }
}

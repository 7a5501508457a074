//! Settings of the topology manager, from the fields of KubeletConfiguration
//! (pkg/kubelet/cm/topologymanager/policy_options.go, v1.36).

use std::collections::BTreeMap;

use crate::config::{
    Compat, PlacementConfig, TopologyManagerPolicy, TopologyManagerScope, go_bool,
};
use crate::model::topology::NumaNodeId;

/// The least that `max-allowable-numa-nodes` may be, and kubelet's value without it.
const LEAST_MAX_NUMA_NODES: u64 = 8;

/// Checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologySettings {
    pub policy: TopologyManagerPolicy,
    pub scope: TopologyManagerScope,
    /// Of masks of as many nodes, those that lie closer together.
    pub prefer_closest: bool,
    /// `None`: as many as there are.
    pub max_numa_nodes: Option<u64>,
}

/// What is wrong with the settings, by themselves or for this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyConfigError {
    #[error(
        "topologyManagerPolicyOptions: {0:?} is unknown; right would be \
         prefer-closest-numa-nodes or max-allowable-numa-nodes"
    )]
    UnknownOption(String),
    #[error("topologyManagerPolicyOptions.{option}: {value:?}; right would be {right}")]
    BadValue {
        option: &'static str,
        value: String,
        right: &'static str,
    },
    #[error(
        "topologyManagerPolicyOptions.max-allowable-numa-nodes: {0}; right would be \
         {LEAST_MAX_NUMA_NODES} or more"
    )]
    MaxNumaNodesTooSmall(i64),
    #[error(
        "topologyManagerPolicyOptions.prefer-closest-numa-nodes: the kernel does not say how far \
         NUMA node {from} is from NUMA node {to}"
    )]
    NoDistance { from: NumaNodeId, to: NumaNodeId },
    #[error(
        "topologyManagerPolicyOptions.max-allowable-numa-nodes: the node has {n} NUMA nodes, more \
         than {max}"
    )]
    TooManyNumaNodes { n: usize, max: u64 },
    #[error(transparent)]
    NumaNodeTooLarge(#[from] crate::model::numa::NumaNodeTooLarge),
}

impl TopologySettings {
    /// With policy `none` the options are not looked at, as in kubelet. Kubelet allows 8 NUMA nodes
    /// where the option is not given, since its search is exponential; ours is not.
    pub fn new(config: &PlacementConfig, compat: Compat) -> Result<Self, TopologyConfigError> {
        let mut settings = Self {
            policy: config.topology_manager_policy,
            scope: config.topology_manager_scope,
            prefer_closest: false,
            max_numa_nodes: (compat == Compat::Kubelet).then_some(LEAST_MAX_NUMA_NODES),
        };
        if settings.policy == TopologyManagerPolicy::None {
            settings.max_numa_nodes = None;
            return Ok(settings);
        }
        settings.set_options(&config.topology_manager_policy_options)?;
        Ok(settings)
    }

    fn set_options(
        &mut self,
        options: &BTreeMap<String, String>,
    ) -> Result<(), TopologyConfigError> {
        for (option, value) in options {
            match option.as_str() {
                "prefer-closest-numa-nodes" => {
                    self.prefer_closest =
                        go_bool(value).ok_or_else(|| TopologyConfigError::BadValue {
                            option: "prefer-closest-numa-nodes",
                            value: value.clone(),
                            right: "true or false",
                        })?;
                }
                "max-allowable-numa-nodes" => {
                    let max: i64 =
                        value
                            .parse()
                            .ok()
                            .ok_or_else(|| TopologyConfigError::BadValue {
                                option: "max-allowable-numa-nodes",
                                value: value.clone(),
                                right: "a whole number",
                            })?;
                    self.max_numa_nodes = match u64::try_from(max) {
                        Ok(max) if max >= LEAST_MAX_NUMA_NODES => Some(max),
                        _ => return Err(TopologyConfigError::MaxNumaNodesTooSmall(max)),
                    };
                }
                _ => return Err(TopologyConfigError::UnknownOption(option.clone())),
            }
        }
        Ok(())
    }
}

use super::{TARGETS, seeds};

#[test]
fn every_seed_passes_its_target() {
    for (name, run) in TARGETS {
        let seeds = seeds::of(name).expect("seeds");
        assert!(!seeds.is_empty(), "{name}");
        for seed in &seeds {
            run(seed);
        }
    }
}

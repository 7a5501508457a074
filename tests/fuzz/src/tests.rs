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

#[test]
fn states_made_at_random_pass() {
    for (name, form) in [("manager-state", 2), ("device-state", 1)] {
        let (_, run) = TARGETS.iter().find(|it| it.0 == name).expect("a target");
        for seed in 0..64 {
            run(&seeds::choices(form, seed * 7919));
        }
    }
}

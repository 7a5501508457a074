use std::fs;
use std::path::Path;

use super::{TARGETS, seeds};

/// Each has at least one, and no directory is of a target that is not there.
#[test]
fn inputs_that_once_broke_a_target_pass() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/fuzz");
    let mut n_targets = 0;
    for directory in fs::read_dir(all).expect("inputs") {
        let directory = directory.expect("a directory").path();
        let name = directory.file_name().expect("a name").to_string_lossy();
        let (_, run) = TARGETS.iter().find(|it| it.0 == name).expect(&name);
        for input in fs::read_dir(&directory).expect("its inputs") {
            run(&fs::read(input.expect("an input").path()).expect("its bytes"));
        }
        n_targets += 1;
    }
    assert_eq!(n_targets, TARGETS.len());
}

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

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ballast_fuzz::kube_cgroup::run(data));

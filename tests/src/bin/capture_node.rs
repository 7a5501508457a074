//! Prints this node as a tree for `tests/data/node`: `cargo run -p ballast-tests --bin
//! capture_node > tests/data/node/NAME.tree`. A directory as argument stands for `/`.

use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let base = std::env::args_os().nth(1).map_or("/".into(), PathBuf::from);
    print!("{}", ballast_tests::fake_node::capture(&base)?);
    Ok(())
}

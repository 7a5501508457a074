//! `tests/vm/kernels.toml`.

use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Selection;
use crate::workspace;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// Names of kernels.
    default: Vec<String>,
    /// Beginnings of the names of host tests that are the same on every kernel.
    pub(super) alike: Vec<String>,
    /// The same of those that run once more on cgroup v1.
    pub(super) legacy: Vec<String>,
    pub(super) emulator: Emulator,
    kernel: Vec<Kernel>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Emulator {
    pub(super) package: String,
    /// The suite of the package comes last, those it depends on before.
    pub(super) suites: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    /// What it is called on the command line and in reports.
    pub(super) name: String,
    /// The Debian suite whose `linux-image-cloud-amd64` is taken.
    pub(super) suite: String,
    /// It has the memory controller of cgroup v1.
    #[serde(default)]
    pub(super) has_legacy_memory: bool,
}

impl Table {
    pub(super) fn read() -> Result<Self> {
        let path = workspace::root().join("tests/vm/kernels.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text)?;
        table
            .choose(&Selection::Named(table.default.clone()))
            .context("default")?;
        Ok(table)
    }

    /// In the order of the table for the default and all, as asked for those named.
    pub(super) fn choose(&self, selection: &Selection) -> Result<Vec<&Kernel>> {
        match selection {
            Selection::All => Ok(self.kernel.iter().collect()),
            Selection::Default => self.named(&self.default),
            Selection::Named(names) => self.named(names),
        }
    }

    fn named(&self, names: &[String]) -> Result<Vec<&Kernel>> {
        let find = |name: &String| match self.kernel.iter().find(|it| it.name == *name) {
            Some(kernel) => Ok(kernel),
            None => {
                let known: Vec<_> = self.kernel.iter().map(|it| it.name.as_str()).collect();
                bail!("no kernel {name}; there are {} and all", known.join(", "))
            }
        };
        names.iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_checkout_is_good() {
        let table = Table::read().expect("tests/vm/kernels.toml is good");
        assert!(
            !table
                .choose(&Selection::Default)
                .expect("checked by read")
                .is_empty()
        );
    }

    #[test]
    fn tests_that_are_named_are_there() {
        let table = Table::read().expect("tests/vm/kernels.toml is good");
        for name in table.alike.iter().chain(&table.legacy) {
            let (module, test) = name.rsplit_once("::").expect("a module and a test");
            let path = format!("tests/host/{}.rs", module.replace("::", "/"));
            let text = fs::read_to_string(workspace::root().join(path)).expect("a module of tests");
            assert!(text.contains(&format!("\nfn {test}")), "{name}");
        }
    }

    #[test]
    fn a_default_that_is_not_in_the_table_is_refused() {
        let text = "default = [\"9\"]\nalike = []\nlegacy = []\n[emulator]\npackage = \"q\"\nsuites = [\"s\"]\n\
                    [[kernel]]\nname = \"8\"\nsuite = \"t\"\n";
        let error = Table::parse(text).expect_err("9 is not in the table");
        assert_eq!(
            format!("{error:#}"),
            "default: no kernel 9; there are 8 and all"
        );
    }
}

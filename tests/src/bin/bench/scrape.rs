//! The agent's HTTP endpoint as a scraper sees it.

use anyhow::Result;
use ballast_tests::scrape;

/// Every sample of one scrape.
pub(crate) struct Scrape(String);

impl Scrape {
    pub(crate) fn of(address: &str) -> Result<Self> {
        Ok(Self(scrape::text(address, "/metrics")?))
    }

    /// The samples of one metric: labels as they are written, and the value.
    pub(crate) fn samples(&self, name: &str) -> Vec<(&str, f64)> {
        self.0
            .lines()
            .filter_map(|line| {
                let rest = line.strip_prefix(name)?;
                let (labels, value) = match rest.strip_prefix('{') {
                    Some(rest) => rest.split_once("} ")?,
                    None => ("", rest.strip_prefix(' ')?),
                };
                Some((labels, value.parse().ok()?))
            })
            .collect()
    }

    /// The sum of the samples whose labels contain all of `wanted`.
    pub(crate) fn sum(&self, name: &str, wanted: &[&str]) -> f64 {
        self.samples(name)
            .iter()
            .filter(|(labels, _)| wanted.iter().all(|it| labels.contains(it)))
            .map(|(_, value)| value)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let scrape = Scrape(
            "# HELP a_total Help.\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\",y=\"2\"} 4\n\
             a_total_more 9\nb 1.5\n"
                .to_owned(),
        );
        assert_eq!(scrape.sum("a_total", &["y=\"2\""]), 7.0);
        assert_eq!(scrape.sum("a_total", &["x=\"1\""]), 3.0);
        assert_eq!(scrape.sum("b", &[]), 1.5);
        assert!(scrape.samples("a").is_empty());
    }
}

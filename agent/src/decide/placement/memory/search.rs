//! The best of the masks that a manager describes.

use crate::decide::placement::hints::{Choices, Hints};
use crate::model::numa::NumaMask;

pub(super) use crate::decide::placement::hints::least_len;

/// The best mask that has all nodes of `contains`, and whether it is preferred: preferred ones go
/// first, then narrower ones.
pub(super) fn best(choices: &Choices, contains: NumaMask) -> Option<(NumaMask, bool)> {
    Hints::OneOf(choices.clone())
        .list()?
        .into_iter()
        .filter_map(|it| Some((it.numa?, it.preferred)))
        .filter(|(mask, _)| contains.is_subset(*mask))
        .min_by(|(a, a_preferred), (b, b_preferred)| {
            b_preferred
                .cmp(a_preferred)
                .then_with(|| a.cmp_narrower(*b))
        })
}

//! Faults and warnings of one pod as they are found. A fault reads as one of the API server, since people search for
//! that: its kind, the value, and what is wrong (apimachinery, util/validation/field/errors.go, v1.36).

use serde_json::Value;

use super::{FieldFault, Weight};

/// Of what must not be negative.
pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";

#[derive(Default)]
pub(super) struct Findings {
    pub(super) faults: Vec<FieldFault>,
    pub(super) warnings: Vec<FieldFault>,
}

impl Findings {
    pub(super) fn fault(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.faults.push(FieldFault::new(path, message));
    }

    /// `detail`: why it is; empty where that is plain.
    pub(super) fn required(&mut self, path: impl Into<String>, detail: &str) {
        let message = match detail {
            "" => "Required value".to_owned(),
            detail => format!("Required value: {detail}"),
        };
        self.fault(path, message);
    }

    pub(super) fn invalid(
        &mut self,
        path: impl Into<String>,
        value: impl Into<Value>,
        detail: &str,
    ) {
        self.fault(path, format!("Invalid value: {}: {detail}", value.into()));
    }

    pub(super) fn unsupported(&mut self, path: impl Into<String>, value: &str, right: &[&str]) {
        let right: Vec<String> = right.iter().map(|it| format!("{it:?}")).collect();
        let right = right.join(", ");
        self.fault(
            path,
            format!("Unsupported value: {value:?}: supported values: {right}"),
        );
    }

    pub(super) fn duplicate(&mut self, path: impl Into<String>, value: &str) {
        self.fault(path, format!("Duplicate value: {value:?}"));
    }

    pub(super) fn not_found(&mut self, path: impl Into<String>, value: &str) {
        self.fault(path, format!("Not found: {value:?}"));
    }

    pub(super) fn forbidden(&mut self, path: impl Into<String>, detail: &str) {
        self.fault(path, format!("Forbidden: {detail}"));
    }

    pub(super) fn warn(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.weigh(Weight::Differs, path, message);
    }

    /// A warning of what makes no difference to what runs.
    pub(super) fn note(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.weigh(Weight::Minor, path, message);
    }

    /// A warning.
    pub(super) fn weigh(
        &mut self,
        weight: Weight,
        path: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.warnings.push(FieldFault {
            weight,
            ..FieldFault::new(path, message)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_begins_as_that_of_the_api_server() {
        let mut found = Findings::default();
        found.required("a", "");
        found.required("a", "it is needed");
        found.invalid("a", "x\"y", "must be a number");
        found.invalid("a", -1, NEGATIVE);
        found.unsupported("a", "tcp", &["TCP", "UDP"]);
        found.duplicate("a", "b");
        found.not_found("a", "");
        found.forbidden("a", "not here");
        let texts: Vec<String> = found.faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "a: Required value",
                "a: Required value: it is needed",
                r#"a: Invalid value: "x\"y": must be a number"#,
                "a: Invalid value: -1: must be greater than or equal to 0",
                r#"a: Unsupported value: "tcp": supported values: "TCP", "UDP""#,
                r#"a: Duplicate value: "b""#,
                r#"a: Not found: """#,
                "a: Forbidden: not here",
            ]
        );
    }
}

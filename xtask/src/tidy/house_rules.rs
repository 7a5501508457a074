//! Rules for all code of the project that no lint knows.

use super::Finding;
use super::source::{SourceFile, line_of};

/// Not in code, and why.
const IN_CODE: &[(&str, &str)] = &[
    (
        "#[ignore",
        "assert today's behaviour instead of ignoring the test",
    ),
    ("todo!(", "finish it, or leave it out"),
    ("unimplemented!(", "finish it, or leave it out"),
    ("dbg!(", "left over from debugging"),
];

/// Not in comments.
const IN_COMMENTS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let finding = |offset, what: String| Finding {
        path: file.path.clone(),
        line: line_of(&file.text, offset),
        what,
    };
    let mut findings = Vec::new();
    for (word, why) in IN_CODE {
        for (at, _) in file.code.match_indices(word) {
            findings.push(finding(at, format!("{word}: {why}")));
        }
    }
    for word in IN_COMMENTS {
        for (at, _) in file.comments.match_indices(word) {
            findings.push(finding(
                at,
                format!("{word}: an issue is found, a comment is not"),
            ));
        }
    }
    // Files there are compiled into several objects, each of which uses another part of them.
    if !file.path.starts_with("ebpf/src") {
        for (at, _) in file.code.match_indices("[allow(") {
            let what = "allow: use expect, which is reported when it is no longer needed";
            findings.push(finding(at, what.to_owned()));
        }
    }
    let exceptions = ["[expect(", "[allow("]
        .into_iter()
        .flat_map(|it| file.code.match_indices(it));
    for (at, _) in exceptions {
        let attribute = &file.code[at..];
        let end = attribute.find(")]").unwrap_or(attribute.len());
        if !attribute[..end].contains("reason") {
            findings.push(finding(at, "exception without a reason".to_owned()));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(text: &str, expected: &[&str]) {
        let file = SourceFile::new("a.rs".into(), text.to_owned());
        let found: Vec<_> = check_file(&file)
            .iter()
            .map(|it| {
                format!(
                    "{} {}",
                    it.line,
                    it.what.split(':').next().unwrap_or_default()
                )
            })
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn what_is_forbidden_is_found_where_it_counts() {
        check_text(
            "#[test]\n#[ignore]\nfn f() { todo!() }",
            &["2 #[ignore", "3 todo!("],
        );
        check_text("// FIXME later", &["1 FIXME"]);
        check_text("let x = \"todo!() FIXME\";", &[]);
        check_text("#![allow(x, reason = \"y\")]", &["1 allow"]);
    }

    #[test]
    fn an_exception_has_a_reason() {
        check_text("#[expect(clippy::x)]", &["1 exception without a reason"]);
        check_text("#[expect(\n    clippy::x,\n    reason = \"y\"\n)]", &[]);
        check_text("result.expect(\"x\")", &[]);
    }
}

//! `cargo xtask cri`: the agent's messages of CRI beside the proto that Kubernetes publishes. The lane `cluster` begins
//! with it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::progress::note;
use crate::{cluster, workspace};

/// Compare the agent's messages of CRI with the published proto: names, numbers and types of fields, and enums
///
/// The proto is that of the Go module k8s.io/cri-api in the version that the cluster is built with.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

const MODULE: &str = "k8s.io/cri-api";
const PROTO: &str = "pkg/apis/runtime/v1/api.proto";

/// Relative to the root of the checkout.
const MESSAGES: &str = "agent/src/grpc/messages/cri.rs";

/// A field by its name: number and type, as the proto writes it.
type Fields = BTreeMap<String, (u32, String)>;

/// A value of an enum by its name.
type Values = BTreeMap<String, i32>;

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let proto = cluster::sources(MODULE)?.join(PROTO);
    let read = |path| fs::read_to_string(path).context("read a text");
    let ours = read(workspace::root().join(MESSAGES)).context(MESSAGES)?;
    let published = read(proto.clone()).with_context(|| proto.display().to_string())?;
    let n = compare(&ours, &published)?;
    note(format_args!(
        "{n} fields and values of {MESSAGES} are those of {PROTO}"
    ));
    Ok(())
}

/// Gives how many fields and values were compared.
fn compare(ours: &str, published: &str) -> Result<usize> {
    let mut faults = Vec::new();
    let n_fields = compare_messages(ours, published, &mut faults)?;
    let n_values = compare_enums(ours, published, &mut faults)?;
    let paths = paths(ours);
    for path in &paths {
        if !has_method(published, path) {
            faults.push(format!("there is no method {path}"));
        }
    }
    ensure!(faults.is_empty(), "{MESSAGES}: {}", faults.join("; "));
    ensure!(
        n_fields > 0 && n_values > 0 && !paths.is_empty(),
        "{MESSAGES} has nothing to compare"
    );
    Ok(n_fields + n_values)
}

fn compare_messages(ours: &str, published: &str, faults: &mut Vec<String>) -> Result<usize> {
    let (messages, published_messages) = (messages_of_rust(ours)?, messages_of_proto(published)?);
    let mut n = 0;
    for (message, fields) in &messages {
        let Some(right) = published_messages.get(message) else {
            faults.push(format!("there is no message {message}"));
            continue;
        };
        for (field, found) in fields {
            n += 1;
            match right.get(field) {
                Some(right) if right == found => {}
                Some((number, kind)) => faults.push(format!(
                    "{message}.{field} is {kind} = {number}, not {} = {}",
                    found.1, found.0
                )),
                None => faults.push(format!("{message} has no field {field}")),
            }
        }
    }
    Ok(n)
}

/// The proto may have more values.
fn compare_enums(ours: &str, published: &str, faults: &mut Vec<String>) -> Result<usize> {
    let (enums, published_enums) = (enums(ours, "pub enum ")?, enums(published, "enum ")?);
    let mut n = 0;
    for (of, values) in &enums {
        let Some(right) = published_enums.get(of) else {
            faults.push(format!("there is no enum {of}"));
            continue;
        };
        for (variant, found) in values {
            n += 1;
            let value = in_capitals(variant);
            match right.get(&value) {
                Some(right) if right == found => {}
                Some(right) => faults.push(format!("{of}.{value} is {right}, not {found}")),
                None => faults.push(format!("{of} has no value {value}")),
            }
        }
    }
    Ok(n)
}

/// As the proto writes a value: `SANDBOX_READY` for `SandboxReady`.
fn in_capitals(variant: &str) -> String {
    let mut value = String::new();
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !value.is_empty() {
            value.push('_');
        }
        value.push(letter.to_ascii_uppercase());
    }
    value
}

/// Enums at the first level, of Rust or of the proto. `head`: what each begins with.
fn enums(text: &str, head: &str) -> Result<BTreeMap<String, Values>> {
    let mut enums = BTreeMap::new();
    let mut current: Option<(String, Values)> = None;
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        if let Some(rest) = line.strip_prefix(head) {
            let name = rest.split([' ', '{']).next().unwrap_or_default();
            current = Some((name.to_owned(), Values::new()));
        } else if line.starts_with('}') {
            enums.extend(current.take());
        } else if let Some((_, values)) = &mut current
            && let Some((name, number)) = line.split_once('=')
        {
            let number = number.split(['[', ',', ';']).next().unwrap_or_default();
            let number = number.trim().parse::<i32>();
            let number = number.with_context(|| format!("the number of {line}"))?;
            values.insert(name.trim().to_owned(), number);
        }
    }
    Ok(enums)
}

/// What derives `Message`: attributes of prost, each on the line before its field.
fn messages_of_rust(text: &str) -> Result<BTreeMap<String, Fields>> {
    let mut messages = BTreeMap::new();
    let mut message: Option<(String, Fields)> = None;
    let mut attribute = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = rest.split([' ', '{']).next().unwrap_or_default();
            message = Some((name.to_owned(), Fields::new()));
        } else if let Some(rest) = line.strip_prefix("#[prost(") {
            let inside = rest.strip_suffix(")]");
            attribute =
                Some(inside.with_context(|| format!("an attribute of several lines: {line}"))?);
        } else if let Some(rest) = line.strip_prefix("pub ")
            && let (Some((_, fields)), Some(attribute)) = (&mut message, attribute.take())
        {
            let (name, kind) = rest.split_once(':').context("a field has a type")?;
            fields.insert(name.to_owned(), field(attribute, kind)?);
        }
        if line.ends_with('}') {
            messages.extend(message.take());
        }
    }
    Ok(messages)
}

/// `attribute`: as in `message, optional, tag = "1"`; `kind`: of the field in Rust.
fn field(attribute: &str, kind: &str) -> Result<(u32, String)> {
    let (what, tag) = attribute
        .split_once("tag = \"")
        .with_context(|| format!("no number in {attribute}"))?;
    let number = tag.trim_end_matches('"').parse();
    let number = number.with_context(|| format!("the number of {attribute}"))?;
    let inner = |of: &str| {
        let inside = kind.trim().strip_prefix(of)?.strip_prefix('<')?;
        inside.split('>').next().map(str::to_owned)
    };
    let what = what.trim_end_matches([',', ' ']);
    let kind = match what {
        "message, optional" => inner("Option").context("an Option")?,
        "message, repeated" => format!("repeated {}", inner("Vec").context("a Vec")?),
        scalar if !scalar.contains([',', '=']) => scalar.to_owned(),
        other => match other.trim_end_matches('"').split_once(" = \"") {
            Some(("btree_map", of)) => format!("map<{of}>"),
            Some(("enumeration", of)) => of.to_owned(),
            _ => bail!("{other}: nobody compares these yet"),
        },
    };
    Ok((number, kind))
}

/// Fields at the first level of each message.
fn messages_of_proto(text: &str) -> Result<BTreeMap<String, Fields>> {
    let mut messages = BTreeMap::new();
    let mut message: Option<(String, Fields)> = None;
    let mut depth = 0_usize;
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if depth == 0
            && let Some(rest) = line.strip_prefix("message ")
        {
            let name = rest.split([' ', '{']).next().unwrap_or_default();
            message = Some((name.to_owned(), Fields::new()));
        } else if depth == 1
            && let (Some((_, fields)), Some(statement)) = (&mut message, line.strip_suffix(';'))
            && let Some((left, right)) = statement.split_once('=')
        {
            let (kind, name) = left.trim().rsplit_once(' ').context("a field has a type")?;
            let number = right.split('[').next().unwrap_or_default().trim().parse();
            let number = number.with_context(|| format!("the number of {line}"))?;
            let kind = kind.replace(", ", ",").replace(',', ", ");
            fields.insert(name.to_owned(), (number, kind));
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        if depth == 0 {
            messages.extend(message.take());
        }
    }
    Ok(messages)
}

/// Constants that are paths of methods.
fn paths(text: &str) -> Vec<&str> {
    let literals = text
        .lines()
        .filter(|it| it.contains("pub const ") && it.contains("\"/"));
    literals.filter_map(|it| it.split('"').nth(1)).collect()
}

/// `path`: `/package.Service/Method`.
fn has_method(proto: &str, path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split('/');
    let (Some(service), Some(method)) = (parts.next(), parts.next()) else {
        return false;
    };
    let Some((package, service)) = service.rsplit_once('.') else {
        return false;
    };
    let Some(at) = proto.find(&format!("service {service} {{")) else {
        return false;
    };
    let body = proto[at..].split("\n}").next().unwrap_or_default();
    proto.contains(&format!("package {package};")) && body.contains(&format!("rpc {method}("))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTO: &str = "package runtime.v1;\nservice RuntimeService {\n    rpc Version(VersionRequest) returns (VersionResponse) {}\n}\n\
        message Filter {\n    // Its id.\n    string id = 1 [deprecated=true];\n    map<string,string> labels = 4;\n}\n\
        message Empty {}\n\
        message List {\n    repeated Filter items = 2;  // all\n    Filter one = 3;\n    Kind kind = 4;\n    enum Kind {\n        A = 0;\n    }\n}\n\
        enum State {\n    STATE_READY    = 0;  // it goes\n    STATE_NOTREADY = 1 [deprecated=true];\n    STATE_LOST = 2;\n}\n";

    const RUST: &str = "pub const VERSION: &str = \"/runtime.v1.RuntimeService/Version\";\n\
        pub struct Filter {\n    #[prost(string, tag = \"1\")]\n    pub id: String,\n    \
        #[prost(btree_map = \"string, string\", tag = \"4\")]\n    pub labels: BTreeMap<String, String>,\n}\n\
        pub struct Empty {}\n\
        pub struct List {\n    #[prost(message, repeated, tag = \"2\")]\n    pub items: Vec<Filter>,\n    \
        #[prost(message, optional, tag = \"3\")]\n    pub one: Option<Filter>,\n    \
        #[prost(enumeration = \"Kind\", tag = \"4\")]\n    pub kind: i32,\n}\n\
        pub enum State {\n    /// It goes.\n    StateReady = 0,\n    StateNotready = 1,\n}\n";

    #[test]
    fn what_is_published_is_found_right() {
        assert_eq!(compare(RUST, PROTO).expect("no fault"), 7);
    }

    #[test]
    fn a_wrong_number_a_wrong_type_a_wrong_name_and_a_wrong_value_are_found() {
        for (right, wrong, fault) in [
            (
                "tag = \"1\"",
                "tag = \"2\"",
                "Filter.id is string = 1, not string = 2",
            ),
            (
                "prost(string,",
                "prost(uint32,",
                "Filter.id is string = 1, not uint32 = 1",
            ),
            ("message, repeated", "message, optional", "a"),
            (
                "Option<Filter>",
                "Option<Empty>",
                "List.one is Filter = 3, not Empty = 3",
            ),
            ("pub id:", "pub uid:", "Filter has no field uid"),
            (
                "pub struct Empty",
                "pub struct Void",
                "there is no message Void",
            ),
            ("/Version\"", "/Versions\"", "there is no method"),
            (
                "string, string",
                "string, uint32",
                "Filter.labels is map<string, string> = 4",
            ),
            (
                "StateNotready = 1",
                "StateNotready = 2",
                "State.STATE_NOTREADY is 1, not 2",
            ),
            ("StateReady", "StateGood", "State has no value STATE_GOOD"),
            (
                "pub enum State",
                "pub enum Status",
                "there is no enum Status",
            ),
        ] {
            let ours = RUST.replacen(right, wrong, 1);
            assert_ne!(ours, RUST, "{right}");
            let error = compare(&ours, PROTO).expect_err(wrong);
            let text = format!("{error:#}");
            assert!(text.contains(fault), "{text}");
        }
    }
}

use super::*;
use crate::model::pod::{Pod, PodOrigin};

const BASE: BaseEnv<'static> = BaseEnv {
    path: DEFAULT_PATH,
    hostname: "node",
    home: "/root",
    address: None,
};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&it| it.to_owned()).collect()
}

fn container(env: &[(&str, &str)], command: &[&str], args: &[&str]) -> Container {
    let mut container = from_json(serde_json::json!({"name": "app"}));
    container.command = strings(command);
    container.args = strings(args);
    container.env = env
        .iter()
        .map(|&(name, value)| EnvVar::new(name, value))
        .collect();
    container
}

fn from_json(container: serde_json::Value) -> Container {
    let source = serde_json::json!({
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "annotations": {"price": "$(A) $$"},
        },
        "spec": {"containers": [container]},
    });
    let source = serde_json::from_value(source).expect("a v1.Pod");
    let mut pod = Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod");
    pod.containers.remove(0)
}

/// The container's variables, the base left out.
#[track_caller]
fn own_env(env: &[(&str, &str)]) -> Vec<(String, String)> {
    let args = process_args(&container(env, &["run"], &[]), &BASE).expect("valid");
    args.env[3..].to_vec()
}

#[test]
fn references_are_replaced_and_everything_else_stays() {
    let env = [("A", "1"), ("B", "two words"), ("E", ""), ("D", "$$(A)")];
    for (text, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("<$(A)$(B)>", "<1two words>"),
        ("$(E)", ""),
        // Not set.
        ("$(X)", "$(X)"),
        ("$()", "$()"),
        ("$(A )", "$(A )"),
        // Escaped.
        ("$$", "$"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$A", "$A"),
        // No reference.
        ("$", "$"),
        ("$A", "$A"),
        ("${A}", "${A}"),
        ("a$", "a$"),
        ("$é", "$é"),
        ("100$ and $(A)", "100$ and 1"),
        // No end.
        ("$(A", "$(A"),
        ("$(", "$("),
        ("$(A$(A)", "$(A$(A)"),
        ("$( $$(A)", "$( $$(A)"),
        // A name goes up to the first end.
        ("$($(A))", "$($(A))"),
        // What is put in is not read again.
        ("$(D)", "$(A)"),
    ] {
        let args = process_args(&container(&env, &["run"], &[text]), &BASE).expect("valid");
        assert_eq!(args.argv[1], expected, "{text:?}");
    }
}

#[test]
fn variables_see_those_before_them() {
    let env = [
        ("LATER", "$(A)"),
        ("A", "1"),
        ("B", "$(A)$(A)"),
        ("A", "$(A)+$(B)"),
        ("C", "$(A)"),
    ];
    let expected = [("LATER", "$(A)"), ("A", "1+11"), ("B", "11"), ("C", "1+11")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(own_env(&env), expected);
}

#[test]
fn what_a_field_holds_is_not_expanded_but_can_be_referred_to() {
    let container = from_json(serde_json::json!({
        "name": "app",
        "command": ["run", "$(F)"],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "F", "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['price']"},
            }},
        ],
    }));
    let args = process_args(&container, &BASE).expect("valid");
    assert_eq!(args.argv[1], "$(A) $$");
}

#[test]
fn the_base_comes_first_and_can_be_replaced_but_not_referred_to() {
    let env = [
        ("X", "$(HOME)"),
        ("HOME", "/data"),
        ("PATH", "/opt:$(PATH)"),
    ];
    let args = process_args(&container(&env, &["run", "$(HOSTNAME)"], &[]), &BASE);
    let args = args.expect("valid");
    let expected = [
        ("PATH", "/opt:$(PATH)"),
        ("HOSTNAME", "node"),
        ("HOME", "/data"),
        ("X", "$(HOME)"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(args.env, expected);
    assert_eq!(args.argv[1], "$(HOSTNAME)");
}

#[test]
fn the_program_is_the_command_or_else_the_first_argument() {
    let env = [("P", "prog"), ("E", "")];
    let empty = |field: &str| {
        Err(ProcessFault::EmptyProgram {
            field: field.to_owned(),
        })
    };
    let argv = |texts: &[&str]| Ok(strings(texts));
    for (command, args, expected) in [
        (&["a", "b"][..], &["c"][..], argv(&["a", "b", "c"])),
        (&[], &["a", "b"], argv(&["a", "b"])),
        (&["a"], &[], argv(&["a"])),
        (&["$(P)"], &["$(P)", ""], argv(&["prog", "prog", ""])),
        (&[], &[], Err(ProcessFault::NoProgram)),
        (&["$(E)"], &["a"], empty("command[0]")),
        (&[], &[""], empty("args[0]")),
    ] {
        let result = process_args(&container(&env, command, args), &BASE);
        assert_eq!(result.map(|it| it.argv), expected, "{command:?} {args:?}");
    }
}

#[test]
fn what_execve_cannot_carry_is_a_fault_that_names_its_field() {
    for (env, arg, message) in [
        (
            ("A", "\0"),
            "",
            "env[0].value has a NUL byte, which no argument or variable can carry",
        ),
        (
            ("A", "1"),
            "x\0",
            "args[0] has a NUL byte, which no argument or variable can carry",
        ),
        (
            ("", "1"),
            "",
            "env[0].name `` must be non-empty, without = and NUL",
        ),
        (
            ("A=B", "1"),
            "",
            "env[0].name `A=B` must be non-empty, without = and NUL",
        ),
    ] {
        let fault =
            process_args(&container(&[env], &["run"], &[arg]), &BASE).expect_err("not for execve");
        assert_eq!(fault.to_string(), message);
    }
}

/// Each variable stands for ten times the one before: 1.7 kB of text, 100 GB of value.
#[test]
fn expansion_ends_at_what_a_program_can_be_started_with() {
    let ten = |name: &str| format!("$({name})").repeat(10);
    let names: Vec<String> = (0..9).map(|it| format!("A{it}")).collect();
    let mut values = vec!["x".repeat(1000)];
    values.extend(names.iter().take(8).map(|it| ten(it)));
    let bomb: Vec<(&str, &str)> = names
        .iter()
        .map(String::as_str)
        .zip(values.iter().map(String::as_str))
        .collect();
    let fault_of = |env: &[(&str, &str)], arg: &str| {
        let container = container(env, &["run"], &[arg]);
        process_args(&container, &BASE)
            .expect_err("a bomb")
            .to_string()
    };
    let message = fault_of(&bomb, "");
    let most = "arguments and environment are longer than 6291456 bytes";
    assert!(
        message.starts_with("with env[4].value expanded, "),
        "{message}"
    );
    assert!(message.contains(most), "{message}");
    // Within the bound as long as nothing refers to the last one, 1 MB.
    let message = fault_of(&bomb[..4], &ten("A3"));
    assert!(message.starts_with("with args[0] expanded, "), "{message}");
    let harmless = container(&bomb[..4], &["run"], &["$(A3)"]);
    let process = process_args(&harmless, &BASE).expect("large and possible");
    assert_eq!(process.argv[1].len(), 1_000_000);
}

#[test]
fn the_address_of_the_node_is_that_of_the_start() {
    let mut of_node = container(&[("HOST", "")], &["run"], &["--bind=$(HOST)"]);
    of_node.env[0].is_node_address = true;
    let at = |address| {
        let base = BaseEnv { address, ..BASE };
        process_args(&of_node, &base).expect("it can be started")
    };
    assert_eq!(at(Some("192.0.2.7")).argv, ["run", "--bind=192.0.2.7"]);
    assert_eq!(at(None).argv, ["run", "--bind="]);
}

use super::*;

fn rules(text: &str) -> DeviceRules {
    match text.parse() {
        Ok(DeviceAccess::Only(rules)) => rules,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_rule_reads_and_writes_as_the_kernel_has_it() {
    for text in [
        "c 1:3 rwm",
        "b *:* m",
        "c 136:* rw",
        "c *:5 r",
        "b 259:4294967295 w",
    ] {
        let rule: DeviceRule = text.parse().expect("a rule");
        assert_eq!(rule.to_string(), text);
    }
    let padded: DeviceRule = " c 1:3   mr \n".parse().expect("a rule");
    assert_eq!(padded.to_string(), "c 1:3 rm");
}

#[test]
fn nonsense_is_no_rule() {
    for text in [
        "",
        "c",
        "c 1:3",
        "c 1:3 ",
        "c 1:3 x",
        "c 1:3 rwm x",
        "a *:* rwm",
        "d 1:3 r",
        "c 13 r",
        "c 1: r",
        "c :3 r",
        "c 1:+3 r",
        "c -1:3 r",
        "c 1:4294967296 r",
        "c 1:3:5 r",
    ] {
        assert!(text.parse::<DeviceRule>().is_err(), "{text:?}");
    }
}

#[test]
fn a_list_is_everything_or_its_rules() {
    assert_eq!("a *:* rwm\n".parse(), Ok(DeviceAccess::Everything));
    assert_eq!("".parse(), Ok(DeviceAccess::Only(DeviceRules::default())));
    assert!("a *:* r\n".parse::<DeviceAccess>().is_err());
    assert!("c 1:3 rwm\nx\n".parse::<DeviceAccess>().is_err());
}

#[test]
fn order_and_splitting_do_not_matter() {
    let one = rules("c 1:3 rw\nb 7:0 r\nc 1:3 m\n");
    let other = rules("b 7:0 r\nc 1:3 rwm\n");
    assert_eq!(one, other);
    assert_eq!(DeviceAccess::Only(one).to_string(), "b 7:0 r, c 1:3 rwm");
}

#[track_caller]
fn check_difference(from: &str, to: &str, deny: &[&str], allow: &[&str]) {
    let (taken, added) = rules(from).difference(&rules(to));
    let text =
        |rules: Vec<DeviceRule>| -> Vec<String> { rules.iter().map(ToString::to_string).collect() };
    assert_eq!(text(taken), deny, "deny, from {from:?} to {to:?}");
    assert_eq!(text(added), allow, "allow, from {from:?} to {to:?}");
}

#[test]
fn a_difference_is_what_one_lacks_of_the_other() {
    check_difference("c 1:3 rwm", "c 1:3 rwm", &[], &[]);
    check_difference("", "c 1:3 rwm", &[], &["c 1:3 rwm"]);
    check_difference("c 1:3 rwm\nb 7:0 r", "c 1:3 rwm", &["b 7:0 r"], &[]);
    check_difference("c 1:3 rm", "c 1:3 rw", &["c 1:3 m"], &["c 1:3 w"]);
    // A wildcard is a rule of its own, as in the kernel.
    check_difference("c *:* m", "c 1:3 m", &["c *:* m"], &["c 1:3 m"]);
}

#[test]
fn permissions_are_letters_in_any_order() {
    let parse = |text: &str| text.parse::<DevicePermissions>();
    assert_eq!(parse("mrw"), Ok(DevicePermissions::ALL));
    assert_eq!(parse("m"), Ok(DevicePermissions::MKNOD));
    assert_eq!(parse("rr").map(|it| it.to_string()), Ok("r".to_owned()));
    for text in ["", "x", "rx", "r w"] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

use super::*;
use crate::decide::placement::hints::Hints;
use crate::decide::testing::pod;
use crate::model::topology::NumaNodeId;

const RESOURCE: &str = "vendor.example/dev";
/// Two devices on each of two nodes.
const FOUR: &str = "a@0 b@0 c@1 d@1";

fn mask(ids: &str) -> NumaMask {
    let ids = ids.chars().filter_map(|it| it.to_digit(16)).map(NumaNodeId);
    NumaMask::new(ids).expect("small ids")
}

fn hint(ids: &str) -> Hint {
    Hint {
        numa: (ids != "any").then(|| mask(ids)),
        preferred: true,
    }
}

fn ids(text: &str) -> Ids {
    text.split_whitespace().map(str::to_owned).collect()
}

fn uid(name: &str) -> PodUid {
    PodUid(name.to_owned())
}

/// `id@nodes`, or `id` for one that lies nowhere; `!` for one that is not healthy.
fn devices(text: &str) -> Vec<Device> {
    text.split_whitespace()
        .map(|word| {
            let healthy = word.trim_end_matches('!');
            let (id, nodes) = match healthy.split_once('@') {
                Some((id, nodes)) => (id, Some(mask(nodes))),
                None => (healthy, None),
            };
            Device {
                id: id.to_owned(),
                is_healthy: healthy == word,
                numa: nodes,
            }
        })
        .collect()
}

const PREFERS: PluginOptions = PluginOptions {
    pre_start_required: true,
    has_preferred_allocation: true,
};

fn manager(compat: Compat, nodes: &str, offered: &str) -> DeviceManager {
    let mut manager = DeviceManager::new(mask(nodes), compat);
    manager.connected(RESOURCE, 1, PluginOptions::default());
    manager.set_devices(RESOURCE, 1, devices(offered));
    manager
}

/// Puts devices into a container's hands without asking anybody.
fn hold(manager: &mut DeviceManager, pod: &str, container: &str, held: &str) {
    let mut books = manager.books();
    let held = DeviceAllocation {
        ids: manager.by_node(RESOURCE, ids(held)),
        response: Vec::new(),
    };
    let containers = books.containers.entry(uid(pod)).or_default();
    let resources = containers.entry(container.to_owned()).or_default();
    resources.insert(RESOURCE.to_owned(), held);
    manager.adopt(books);
}

/// Allocates; plugins give what they are asked for and prefer the last ids. Gives what the container
/// holds then, and what the plugin was asked for its preference.
#[track_caller]
fn allocate(
    manager: &mut DeviceManager,
    pod: &Pod,
    container: &str,
    hint: Hint,
) -> Result<(Ids, Vec<PluginQuestion>), DeviceError> {
    let container = pod.all_containers().find(|it| it.name == container);
    let container = container.expect("a container of the pod");
    let mut answers = PluginAnswers::default();
    let mut asked = Vec::new();
    loop {
        let before = manager.books();
        let question = match manager.allocate(pod, container, hint, &answers)? {
            Allocated::Ask(question) => question,
            Allocated::Done => break,
        };
        assert_eq!(manager.books(), before, "a question changes nothing");
        let answer = match &question {
            PluginQuestion::Preferred {
                available,
                must_include,
                ..
            } => {
                asked.push(question.clone());
                let last = available.difference(must_include).last().cloned();
                let ids = must_include.iter().cloned().chain(last).collect();
                PluginAnswer::Preferred { ids }
            }
            PluginQuestion::Allocate { .. } => PluginAnswer::Allocated { response: vec![1] },
        };
        answers.insert(question, answer);
    }
    let held = manager.allocations_of(&pod.uid, &container.name);
    let held = held
        .and_then(|it| it.get(RESOURCE))
        .map(DeviceAllocation::device_ids);
    Ok((held.unwrap_or_default(), asked))
}

fn shown(hints: &ProviderHints) -> String {
    match hints.get(RESOURCE).map(Hints::list) {
        None => "absent".to_owned(),
        Some(None) => "any".to_owned(),
        Some(Some(list)) => {
            let shown = list.iter().map(|it| {
                let sign = if it.preferred { '+' } else { '-' };
                format!("{}{sign}", it.numa.unwrap_or_default())
            });
            shown.collect::<Vec<_>>().join(" ")
        }
    }
}

fn app(n: u32) -> Pod {
    pod(&format!("app {{lim {RESOURCE}={n}}}"))
}

#[test]
fn hints_are_kubelets() {
    let init = format!("init {{lim {RESOURCE}=1}} app {{lim {RESOURCE}=2}}");
    for (nodes, offered, others, reused, asked, expected) in [
        ("01", FOUR, "", "", 1, "0+ 1+ 0-1-"),
        ("01", FOUR, "b d", "", 2, "0-1-"),
        ("01", FOUR, "", "", 3, "0-1+"),
        ("01", FOUR, "b", "a", 2, "0-1-"),
        ("01", "x@01 y@1", "", "", 1, "0+ 1+ 0-1-"),
        ("0123", "p@1 q@1", "", "", 1, "1+"),
        ("01", "a@0 b", "", "", 2, ""),
        ("01", "a b", "", "", 1, "any"),
        ("01", FOUR, "", "", 5, ""),
        ("01", FOUR, "", "", 0, "0+ 1+ 0-1-"),
    ] {
        let mut manager = manager(Compat::Kubelet, nodes, offered);
        hold(&mut manager, "other", "c", others);
        let pod = match reused {
            "" => app(asked),
            _ => pod(&init),
        };
        if !reused.is_empty() {
            hold(&mut manager, "u", "init0", reused);
        }
        let hints = manager.hints(&pod, &pod.containers[0]);
        assert_eq!(
            shown(&hints),
            expected,
            "{offered}, {asked} of all but {others}"
        );
    }
}

#[test]
fn the_plugin_is_asked_where_there_is_a_choice() {
    for (asked, under, given, question) in [
        (1, "1", "d", Some(("c d", ""))),
        (2, "1", "c d", None),
        (3, "1", "b c d", Some(("a b c d", "c d"))),
        (1, "any", "d", Some(("a b c d", ""))),
        (4, "01", "a b c d", None),
    ] {
        let mut manager = manager(Compat::Kubelet, "01", FOUR);
        manager.connected(RESOURCE, 1, PREFERS);
        let got = allocate(&mut manager, &app(asked), "app0", hint(under));
        let questions =
            question
                .into_iter()
                .map(|(available, must_include)| PluginQuestion::Preferred {
                    resource: RESOURCE.to_owned(),
                    available: ids(available),
                    must_include: ids(must_include),
                    size: asked,
                });
        assert_eq!(
            got,
            Ok((ids(given), questions.collect())),
            "{asked} on {under}"
        );
    }
}

#[test]
fn refusals_are_in_kubelets_words() {
    let refused = |offered: &str, held: &str, asked: u32| {
        let mut manager = manager(Compat::Kubelet, "01", offered);
        if !held.is_empty() {
            hold(&mut manager, "u", "app0", held);
        }
        let error = allocate(&mut manager, &app(asked), "app0", Hint::UNKNOWN);
        error.expect_err("a refusal").to_string()
    };
    assert_eq!(
        refused(FOUR, "a", 2),
        "pod \"u\" container \"app0\" changed request for resource \"vendor.example/dev\" \
         from 1 to 2"
    );
    assert_eq!(
        refused("a!", "", 1),
        "no healthy devices present; cannot allocate unhealthy devices vendor.example/dev"
    );
    assert_eq!(
        refused("a! b", "a", 1),
        "previously allocated devices are no longer healthy; \
         cannot allocate unhealthy devices vendor.example/dev"
    );
    assert_eq!(
        refused(FOUR, "", 5),
        "requested number of devices unavailable for vendor.example/dev. \
         Requested: 5, Available: 4"
    );
}

#[test]
fn a_plugin_that_fails_refuses_the_container() {
    let mut manager = manager(Compat::Ballast, "01", FOUR);
    let pod = app(1);
    let asked = manager.allocate(
        &pod,
        &pod.containers[0],
        hint("0"),
        &PluginAnswers::default(),
    );
    let Ok(Allocated::Ask(question)) = asked else {
        panic!("{asked:?}");
    };
    let mut answers = PluginAnswers::default();
    let why = "out of memory".to_owned();
    answers.insert(question, PluginAnswer::Failed { why });
    let error = manager.allocate(&pod, &pod.containers[0], hint("0"), &answers);
    let error = error.expect_err("the plugin's own");
    assert_eq!(error.to_string(), "out of memory");
    assert_eq!(error.reason(), RefusalReason::UnexpectedAdmissionError);
    assert!(manager.holders().next().is_none());
}

fn numbers(manager: &DeviceManager) -> Option<(usize, usize)> {
    let capacity = manager.capacity();
    capacity
        .get(RESOURCE)
        .map(|it| (it.capacity, it.allocatable))
}

#[test]
fn devices_of_a_plugin_that_left_count_for_five_minutes() {
    let at = Duration::from_secs;
    let mut manager = manager(Compat::Ballast, "01", FOUR);
    hold(&mut manager, "u", "app0", "a");
    assert_eq!(manager.disconnected(RESOURCE, 1, at(10)), [uid("u")].into());
    assert_eq!(numbers(&manager), Some((4, 0)));
    assert!(!manager.expire(at(310)));
    assert!(manager.expire(at(311)));
    assert_eq!(numbers(&manager), Some((0, 0)), "the key stays");
    assert!(manager.allocations_of(&uid("u"), "app0").is_some());
    manager.connected(RESOURCE, 2, PluginOptions::default());
    manager.set_devices(RESOURCE, 2, devices("a@0 b@0!"));
    assert_eq!(numbers(&manager), Some((2, 1)));
}

#[test]
fn after_a_restart_holders_are_known_and_devices_come_with_their_plugin() {
    let mut before = manager(Compat::Ballast, "01", FOUR);
    hold(&mut before, "u", "app0", "a");
    let mut manager = DeviceManager::new(mask("01"), Compat::Ballast);
    manager.adopt(before.state().into());
    assert_eq!(manager.state().containers, before.state().containers);
    assert_eq!(numbers(&manager), Some((0, 0)));
    assert!(
        !manager.expire(Duration::from_secs(1000)),
        "counts from now"
    );
    assert!(manager.expire(Duration::from_secs(1301)));
    assert_eq!(manager.available(RESOURCE), Ids::new());
    manager.connected(RESOURCE, 1, PluginOptions::default());
    assert_eq!(
        manager.set_devices(RESOURCE, 1, devices(FOUR)),
        [uid("u")].into()
    );
    assert_eq!(manager.available(RESOURCE), ids("b c d"));
}

#[test]
fn what_an_old_instance_says_changes_nothing() {
    let mut manager = manager(Compat::Ballast, "01", FOUR);
    manager.connected(RESOURCE, 2, PluginOptions::default());
    manager.set_devices(RESOURCE, 2, devices("z"));
    let books = manager.books();
    manager.disconnected(RESOURCE, 1, Duration::ZERO);
    manager.set_devices(RESOURCE, 1, devices(FOUR));
    assert_eq!(manager.books(), books);
}

#[test]
fn devices_of_init_containers_are_used_again() {
    let pod = pod(&format!(
        "init {{lim {RESOURCE}=1}} sidecar {{lim {RESOURCE}=1}} init {{lim {RESOURCE}=2}} \
         app {{lim {RESOURCE}=1}} app {{lim {RESOURCE}=1}} app {{lim {RESOURCE}=1}}"
    ));
    let mut manager = manager(Compat::Ballast, "01", FOUR);
    let mut give = |container| {
        let given = allocate(&mut manager, &pod, container, hint("any"));
        given.map(|(ids, _)| ids)
    };
    assert_eq!(give("init0"), Ok(ids("a")));
    assert_eq!(give("sidecar1"), Ok(ids("a")), "keeps it");
    assert_eq!(give("init2"), Ok(ids("b c")));
    assert_eq!(give("app3"), Ok(ids("b")));
    assert_eq!(give("app4"), Ok(ids("c")));
    assert_eq!(give("app5"), Ok(ids("d")));
    assert_eq!(give("init2"), Ok(ids("b c")), "again, without a change");
}

#[test]
fn who_holds_his_devices_waits_for_no_plugin() {
    for (compat, gone, unhealthy) in [
        (Compat::Ballast, Ok(()), Err(true)),
        (Compat::Kubelet, Err(false), Err(true)),
    ] {
        let mut before = manager(compat, "01", FOUR);
        hold(&mut before, "u", "app0", "a");
        let mut manager = DeviceManager::new(mask("01"), compat);
        manager.adopt(before.state().into());
        let outcome = |manager: &mut DeviceManager| {
            let outcome = allocate(manager, &app(1), "app0", hint("0"));
            outcome
                .map(|_| ())
                .map_err(|error| matches!(error, DeviceError::HeldUnhealthy(_)))
        };
        assert_eq!(outcome(&mut manager), gone, "{compat:?}");
        manager.connected(RESOURCE, 1, PluginOptions::default());
        assert_eq!(outcome(&mut manager), gone, "{compat:?}, not listed");
        manager.set_devices(RESOURCE, 1, devices("a@0! b@0"));
        assert_eq!(outcome(&mut manager), unhealthy, "{compat:?}, listed");
        manager.set_devices(RESOURCE, 1, devices(FOUR));
        assert_eq!(outcome(&mut manager), Ok(()), "{compat:?}, healthy again");
        let pod = app(1);
        manager.disconnected(RESOURCE, 1, Duration::ZERO);
        assert_eq!(manager.readopt(&pod, &pod.containers[0]), Ok(()));
        assert!(manager.readopt(&app(2), &app(2).containers[0]).is_err());
    }
}

#[test]
fn a_pod_waits_for_the_plugins_it_needs() {
    let pod = app(1);
    let mut manager = DeviceManager::new(mask("01"), Compat::Ballast);
    assert_eq!(manager.awaited(&pod), Some(RESOURCE));
    manager.connected(RESOURCE, 1, PluginOptions::default());
    assert_eq!(manager.awaited(&pod), Some(RESOURCE), "not listed");
    manager.set_devices(RESOURCE, 1, devices(FOUR));
    assert_eq!(manager.awaited(&pod), None);
    manager.disconnected(RESOURCE, 1, Duration::ZERO);
    assert_eq!(manager.awaited(&pod), Some(RESOURCE));
    assert!(!manager.is_settled(&pod));
    hold(&mut manager, "u", "app0", "a");
    assert_eq!(manager.awaited(&pod), None, "it has what it needs");
    assert!(manager.is_settled(&pod));
    assert_eq!(manager.awaited(&app(0)), None);
    assert!(manager.is_settled(&app(0)));
    let kubelet = DeviceManager::new(mask("01"), Compat::Kubelet);
    assert_eq!(kubelet.awaited(&pod), None);
    assert!(kubelet.is_settled(&pod), "kubelet lets it go on");
}

#[test]
fn a_device_on_no_node_of_the_machine_lies_nowhere() {
    // Nodes -1 and from 64 on come as no node at all.
    for offered in ["a@ b@", "a@7 b@7"] {
        let hints = |compat| {
            let manager = manager(compat, "01", offered);
            shown(&manager.hints(&app(1), &app(1).containers[0]))
        };
        assert_eq!(hints(Compat::Ballast), "any", "{offered}");
    }
    let manager = manager(Compat::Kubelet, "01", "a@7 b@7");
    assert_eq!(shown(&manager.hints(&app(1), &app(1).containers[0])), "");
}

#[test]
fn a_pod_is_hinted_by_what_it_holds_or_by_what_is_free() {
    let mut manager = manager(Compat::Kubelet, "01", FOUR);
    let two = pod(&format!(
        "app {{lim {RESOURCE}=1}} app {{lim {RESOURCE}=1}}"
    ));
    assert_eq!(shown(&manager.pod_hints(&two)), "0+ 1+ 0-1-");
    hold(&mut manager, "other", "c", "a");
    assert_eq!(shown(&manager.pod_hints(&two)), "1+ 0-1-");
    hold(&mut manager, "u", "app0", "b");
    assert_eq!(shown(&manager.pod_hints(&two)), "", "one is not two");
    hold(&mut manager, "u", "app1", "c");
    assert_eq!(shown(&manager.pod_hints(&two)), "0-1-");
}

#[test]
fn plugins_that_ask_for_it_are_told_of_a_start() {
    let mut manager = manager(Compat::Ballast, "01", FOUR);
    hold(&mut manager, "u", "app0", "a c");
    assert_eq!(manager.pre_starts(&uid("u"), "app0"), []);
    manager.connected(RESOURCE, 2, PREFERS);
    let told = [(RESOURCE.to_owned(), ids("a c"))];
    assert_eq!(manager.pre_starts(&uid("u"), "app0"), told);
    // One that is away cannot answer, and nothing starts without it.
    manager.disconnected(RESOURCE, 2, Duration::ZERO);
    assert_eq!(manager.pre_starts(&uid("u"), "app0"), told);
    manager.expire(2 * GRACE);
    // As when CPUs come.
    let books = manager.books();
    let mut manager = DeviceManager::new(mask("01"), Compat::Ballast);
    manager.adopt(books);
    assert_eq!(manager.pre_starts(&uid("u"), "app0"), told);
    let options = PluginOptions {
        pre_start_required: false,
        ..PREFERS
    };
    manager.connected(RESOURCE, 3, options);
    assert_eq!(manager.pre_starts(&uid("u"), "app0"), []);
}

#[test]
fn who_asks_for_none_of_a_resource_needs_none_to_be_there() {
    let pod = pod(&format!("app {{lim {RESOURCE}=0}}"));
    for (compat, is_let_in) in [(Compat::Ballast, true), (Compat::Kubelet, false)] {
        let mut manager = manager(compat, "01", "a!");
        let answers = PluginAnswers::default();
        let outcome = manager.allocate(&pod, &pod.containers[0], hint("0"), &answers);
        assert_eq!(outcome.is_ok(), is_let_in, "{compat:?}: {outcome:?}");
    }
}

/// 64 nodes have 2^64 masks: none of this may walk them.
#[test]
fn hints_of_a_machine_with_64_nodes_are_cheap() {
    for span in [1, 2, 5] {
        let devices = (0..512_u64).map(|i| Device {
            id: i.to_string(),
            is_healthy: true,
            numa: Some(NumaMask::from_bits(
                ((1 << span) - 1_u64).rotate_left(u32::try_from(i * 7 % 64).expect("below 64")),
            )),
        });
        let mut manager = DeviceManager::new(NumaMask::from_bits(u64::MAX), Compat::Ballast);
        manager.connected(RESOURCE, 1, PluginOptions::default());
        manager.set_devices(RESOURCE, 1, devices.collect());
        let pod = app(100);
        let hints = manager.hints(&pod, &pod.containers[0]);
        let Some(Hints::OneOf(choices)) = hints.get(RESOURCE) else {
            panic!("{hints:?}");
        };
        let region = choices.region.as_ref().expect("a region");
        let crate::decide::placement::hints::Preference::Len(fewest) = region.preferred else {
            panic!("{region:?}");
        };
        // 8 devices start at each node.
        assert!(
            fewest >= 13_u32.div_ceil(span) && fewest <= 13,
            "{span}: {fewest}"
        );
    }
}

#[test]
fn books_and_answers_survive_as_json() {
    let mut manager = manager(Compat::Ballast, "01", "a@01 b");
    allocate(&mut manager, &app(2), "app0", hint("any")).expect("enough");
    let text = serde_json::to_string(&manager.books()).expect("JSON");
    let books: DeviceBooks = serde_json::from_str(&text).expect("as written");
    assert_eq!(books, manager.books());

    let mut answers = PluginAnswers::default();
    let question = PluginQuestion::Allocate {
        resource: RESOURCE.to_owned(),
        container: "c".to_owned(),
        ids: ids("a"),
    };
    answers.insert(question, PluginAnswer::Allocated { response: vec![0] });
    let text = serde_json::to_string(&answers).expect("JSON");
    assert_eq!(
        serde_json::from_str::<PluginAnswers>(&text).expect("as written"),
        answers
    );
}

/// Pods come, go and come again at random: no device has two owners, a refused or repeated admission
/// changes nothing, and what is given back is what was free before.
#[test]
fn no_device_is_given_twice_and_release_restores() {
    let mut seed = 7_u64;
    let mut next = |n: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).expect("31 bits") % n
    };
    let specs = [
        "app {lim vendor.example/dev=2}",
        "init {lim vendor.example/dev=3} app {lim vendor.example/dev=1} \
         app {lim vendor.example/dev=2}",
        "init {lim vendor.example/dev=1} sidecar {lim vendor.example/dev=1} \
         app {lim vendor.example/dev=4}",
    ];
    let mut manager = manager(
        Compat::Ballast,
        "01",
        "a@0 b@0 c@0 d@1 e@1 f@01 g h! i@1 j@0",
    );
    manager.connected(RESOURCE, 1, PREFERS);
    let mut n_admitted = 0;
    for round in 0..2000 {
        let mut pod = pod(specs[next(specs.len())]);
        pod.uid = uid(&format!("u{}", next(6)));
        let held = manager.books.containers.contains_key(&pod.uid);
        if held {
            manager.release(&pod.uid);
            continue;
        }
        let free = manager.available(RESOURCE);
        let under = hint(["0", "1", "01", "any"][next(4)]);
        let mut draft = manager.clone();
        let names: Vec<String> = pod.all_containers().map(|it| it.name.clone()).collect();
        let is_in = names
            .iter()
            .all(|name| allocate(&mut draft, &pod, name, under).is_ok());
        if !is_in {
            continue;
        }
        n_admitted += 1;
        let books = draft.books();
        let asked_again = names
            .iter()
            .all(|name| allocate(&mut draft, &pod, name, under).is_ok());
        assert!(asked_again && draft.books() == books, "round {round}");
        let mut owners: BTreeMap<String, &PodUid> = BTreeMap::new();
        for (pod, containers) in &books.containers {
            let held = containers.values().flat_map(BTreeMap::values);
            for id in held.flat_map(DeviceAllocation::device_ids) {
                let owner = owners.entry(id.clone()).or_insert(pod);
                assert_eq!(*owner, pod, "round {round}, device {id}");
            }
        }
        // Those that run side by side share nothing.
        let side_by_side = names.iter().filter(|it| !it.starts_with("init"));
        let held = side_by_side.filter_map(|name| draft.allocations_of(&pod.uid, name));
        let held: Vec<String> = held
            .flat_map(BTreeMap::values)
            .flat_map(DeviceAllocation::device_ids)
            .collect();
        assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());

        let mut back = draft.clone();
        back.release(&pod.uid);
        assert_eq!(back.available(RESOURCE), free, "round {round}");
        assert_eq!(back.books(), manager.books(), "round {round}");
        manager = draft;
    }
    assert!(n_admitted > 200, "{n_admitted}");
}

#[test]
fn the_order_of_messages_of_different_plugins_does_not_matter() {
    let tell = |resources: [&str; 2], is_reversed: bool| {
        let mut manager = DeviceManager::new(mask("01"), Compat::Ballast);
        for resource in resources {
            manager.connected(resource, 1, PREFERS);
        }
        for resource in resources {
            let mut told = devices(FOUR);
            if is_reversed {
                told.reverse();
            }
            manager.set_devices(resource, 1, told);
        }
        let pod = pod("app {lim a.b/x=3 a.b/y=1}");
        allocate(&mut manager, &pod, "app0", hint("1")).expect("enough");
        manager.books()
    };
    assert_eq!(
        tell(["a.b/x", "a.b/y"], false),
        tell(["a.b/y", "a.b/x"], true)
    );
}

//! `kubelet_internal_checkpoint`: read, turned into state, and taken over beside a plugin.
//!
//! The first byte says what the rest is: a file as it stands, or choices from which one is made. The
//! checksum stops a file that was changed.

use arbitrary::{Arbitrary, Unstructured};
use ballast::decide::placement::managers::Books;
use ballast::device_plugin::decode_response;
use ballast::model::kubelet_state::device::{DeviceEntry, DeviceFile};
use ballast::model::placement::DeviceState;

use crate::machine::{Choice, RESOURCE};

pub fn run(data: &[u8]) {
    match data {
        [form, choice, text @ ..] if form % 2 == 0 => {
            if let Ok(file) = DeviceFile::read(text) {
                check(Choice::from_byte(*choice), &file);
            }
        }
        [_, choices @ ..] => {
            // Too few choices for a file say nothing.
            if let Ok(made) = Made::arbitrary(&mut Unstructured::new(choices)) {
                check(made.choice, &made.file());
            }
        }
        [] => (),
    }
}

fn check(choice: Choice, file: &DeviceFile) {
    let text = file.to_text();
    let read = DeviceFile::read(text.as_bytes()).expect("a file of ours can be read");
    assert_eq!(read, *file, "{text}");
    for entry in file.entries.iter().flatten() {
        // What a plugin said once, on a disk that may have changed it.
        let _response = decode_response(&entry.response);
    }
    let Ok(state) = DeviceState::try_from(file) else {
        return;
    };
    // The second file is in the order of the state, and lists nothing twice.
    let again = DeviceState::try_from(&DeviceFile::from(&state));
    assert_eq!(again.expect("a state has a file"), state);
    choice.check_adoption(Books {
        devices: state.into(),
        ..Books::default()
    });
}

#[derive(Debug, Arbitrary)]
struct Made {
    choice: Choice,
    entries: Option<Vec<Entry>>,
    registered: Vec<(Resource, Vec<u8>)>,
}

#[derive(Debug, Arbitrary)]
struct Entry {
    pod: u8,
    container: u8,
    resource: Resource,
    ids: Vec<(i8, Vec<u8>)>,
    response: Vec<u8>,
}

#[derive(Debug, Arbitrary)]
enum Resource {
    Known,
    Other,
    Any(String),
}

impl Resource {
    fn name(&self) -> String {
        match self {
            Self::Known => RESOURCE.to_owned(),
            Self::Other => "example.org/nic".to_owned(),
            Self::Any(name) => name.clone(),
        }
    }
}

fn ids(numbers: &[u8]) -> Vec<String> {
    numbers.iter().map(|it| format!("gpu-{}", it % 6)).collect()
}

impl Made {
    fn file(&self) -> DeviceFile {
        let entry = |it: &Entry| DeviceEntry {
            pod: format!("pod-{}", it.pod % 4),
            container: format!("container-{}", it.container % 3),
            resource: it.resource.name(),
            ids: it
                .ids
                .iter()
                .map(|(node, of_node)| (i64::from(*node), ids(of_node)))
                .collect(),
            response: it.response.clone(),
        };
        let entries = self.entries.as_ref();
        DeviceFile {
            entries: entries.map(|it| it.iter().map(entry).collect()),
            registered: self
                .registered
                .iter()
                .map(|(resource, of_it)| (resource.name(), ids(of_it)))
                .collect(),
        }
    }
}

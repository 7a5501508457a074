//! Several kubelet configurations as one: the file, its drop-ins in order, the inline section.
//! Mappings are merged by field, lists and scalars replaced, `null` takes a field away (RFC 7386),
//! as kubelet merges its drop-in directory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::fault::{Fault, FieldPath};

/// Where a layer's fields come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The `kubelet` section of the agent's configuration.
    Inline,
    File(PathBuf),
    /// The command line of a kubelet.
    Flags,
    /// A kubelet that was asked.
    Asked,
}

/// The merged fields and, for each, the layer that set it.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) fields: Map<String, Value>,
    pub(super) origins: Origins,
}

/// Which layer set a field. Paths start at the KubeletConfiguration itself. A path that is missing
/// has the origin of the nearest one above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<FieldPath, Origin>);

impl Layers {
    pub(super) fn apply(&mut self, layer: &Map<String, Value>, origin: &Origin) {
        let Self { fields, origins } = self;
        patch(fields, layer, &FieldPath::root(), &mut |path, is_set| {
            origins.0.retain(|known, _| !path.is_prefix_of(known));
            if is_set {
                origins.0.insert(path.clone(), origin.clone());
            }
        });
    }

    /// Fields of `layer` count instead of those of the layers before it: mappings are not merged.
    pub(super) fn overrule(&mut self, layer: &Map<String, Value>, origin: &Origin) {
        let none = layer.keys().map(|name| (name.clone(), Value::Null));
        self.apply(&none.collect(), origin);
        self.apply(layer, origin);
    }

    /// Takes a field away.
    pub(super) fn remove(&mut self, path: &FieldPath) {
        let names: Vec<&str> = path.fields().collect();
        let Some((last, above)) = names.split_last() else {
            return;
        };
        let mut fields = &mut self.fields;
        for name in above {
            match fields.get_mut(*name) {
                Some(Value::Object(inner)) => fields = inner,
                _ => return,
            }
        }
        fields.remove(*last);
    }

    pub(super) fn locate(&self, fault: Fault) -> Fault {
        let because = [fault.field.clone()];
        self.origins.locate(fault, &because)
    }
}

impl Origins {
    /// A fault of the configuration, whose paths start at the agent's own, told of the file that sets the first
    /// of the fields that it is concluded from.
    pub fn locate_fault(&self, fault: Fault, because: &[FieldPath]) -> Fault {
        match fault.field.within("kubelet") {
            Some(field) => {
                let because = because.iter().filter_map(|it| it.within("kubelet"));
                self.locate(Fault { field, ..fault }, &because.collect::<Vec<_>>())
            }
            None => fault,
        }
    }

    /// The same fault, said of the file that holds the field, of the command line, or of the `kubelet` section.
    fn locate(&self, fault: Fault, because: &[FieldPath]) -> Fault {
        match because.iter().find_map(|it| self.origin(it)) {
            Some(Origin::File(file)) => Fault {
                file: Some(file.clone()),
                ..fault
            },
            Some(Origin::Flags) => Fault {
                file: Some(PathBuf::from("kubelet's command line")),
                ..fault
            },
            Some(Origin::Asked) => Fault {
                file: Some(PathBuf::from("kubelet's /configz")),
                ..fault
            },
            Some(Origin::Inline) | None => Fault {
                field: fault.field.below("kubelet"),
                ..fault
            },
        }
    }

    fn origin(&self, path: &FieldPath) -> Option<&Origin> {
        // The path itself or the first thing below it, since a fault can be about a whole mapping;
        // else what holds it.
        let below = self.0.range(path..).next();
        if let Some((_, origin)) = below.filter(|(known, _)| path.is_prefix_of(known)) {
            return Some(origin);
        }
        let above = std::iter::successors(path.parent(), FieldPath::parent);
        above.filter_map(|it| self.0.get(&it)).next()
    }
}

/// Calls `note` with every path that was replaced (`true`) or taken away (`false`).
fn patch(
    target: &mut Map<String, Value>,
    layer: &Map<String, Value>,
    at: &FieldPath,
    note: &mut impl FnMut(&FieldPath, bool),
) {
    for (name, value) in layer {
        let path = at.field(name);
        match value {
            Value::Null => {
                target.remove(name);
                note(&path, false);
            }
            Value::Object(inner) => {
                let slot = target.entry(name).or_insert(Value::Null);
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                    note(&path, true);
                }
                if let Value::Object(fields) = slot {
                    patch(fields, inner, &path, note);
                }
            }
            _ => {
                target.insert(name.clone(), value.clone());
                note(&path, true);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use serde_json::json;

    use super::*;

    fn layers(layers: &[(Origin, Value)]) -> Layers {
        let mut merged = Layers::default();
        for (origin, value) in layers {
            merged.apply(value.as_object().unwrap(), origin);
        }
        merged
    }

    #[test]
    fn maps_merge_lists_and_scalars_are_replaced_null_removes() {
        let merged = layers(&[
            (
                Origin::File("a".into()),
                json!({"maxPods": 1, "enforce": ["pods", "x"], "hard": {"m": "1", "n": "2"}, "gone": {"a": 1}}),
            ),
            (
                Origin::Inline,
                json!({"maxPods": 2, "enforce": ["none"], "hard": {"n": "3", "o": "4"}, "gone": null}),
            ),
        ]);
        let right =
            json!({"maxPods": 2, "enforce": ["none"], "hard": {"m": "1", "n": "3", "o": "4"}});
        assert_eq!(Value::Object(merged.fields), right);
    }

    #[test]
    fn a_fault_is_told_of_the_layer_that_set_the_field() {
        let base = Origin::File("/k/config.yaml".into());
        let merged = layers(&[
            (base, json!({"hard": {"m": "1", "n": "2"}, "maxPods": 1})),
            (
                Origin::File("/k/d/10.conf".into()),
                json!({"hard": {"n": "3"}}),
            ),
            (Origin::Inline, json!({"maxPods": 2})),
        ]);
        let root = FieldPath::root();
        for (field, right) in [
            (root.field("hard").field("m"), "/k/config.yaml: hard.m: bad"),
            (root.field("hard").field("n"), "/k/d/10.conf: hard.n: bad"),
            (root.field("maxPods"), "kubelet.maxPods: bad"),
            (root.field("absent"), "kubelet.absent: bad"),
        ] {
            let fault = Fault {
                file: None,
                field,
                message: "bad".into(),
            };
            assert_eq!(merged.locate(fault).to_string(), right);
        }
    }
}

//! Quantities written as bare numbers (`cpu: 2`), and nothing written for an entry of a map or of a list
//! (`labels: {a: }`): the API accepts them, and the typed v1.Pod does not.

use serde_json::{Map, Value};

/// Maps and lists of texts, wherever they stand in a pod.
const TEXTS: [&str; 21] = [
    "add",
    "annotations",
    "args",
    "command",
    "drop",
    "finalizers",
    "hostnames",
    "labels",
    "matchLabelKeys",
    "matchLabels",
    "mismatchLabelKeys",
    "monitors",
    "nameservers",
    "namespaces",
    "nodeSelector",
    "options",
    "portals",
    "searches",
    "targetWWNs",
    "values",
    "wwids",
];
const QUANTITIES: [&str; 3] = ["limits", "overhead", "requests"];

/// Turns the numbers of a v1.Pod document that stand where a quantity belongs into strings. To be
/// done before the document is read as a v1.Pod; anything else is left as it is.
pub fn quote_quantities(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    quote_entries(spec.get_mut("overhead"));
    quote_resources(spec);
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        for container in list(spec.get_mut(field)) {
            quote_resources(container);
            for variable in list(container.get_mut("env")) {
                quote(variable.pointer_mut("/valueFrom/resourceFieldRef/divisor"));
            }
        }
    }
    for volume in list(spec.get_mut("volumes")) {
        quote(volume.pointer_mut("/emptyDir/sizeLimit"));
    }
}

/// Puts what the API reads where nothing stands for an entry of a map or of a list: the empty text, 0, or an object
/// without fields. To be done before a document is read as a v1.Pod.
pub fn fill_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let empty = match name.as_str() {
                    name if TEXTS.contains(&name) => Value::from(""),
                    name if QUANTITIES.contains(&name) => Value::from("0"),
                    "supplementalGroups" => Value::from(0),
                    _ if field.is_array() => Value::Object(Map::new()),
                    _ => Value::Null,
                };
                fill(field, &empty);
                fill_nulls(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(fill_nulls),
        _ => {}
    }
}

/// The entries of a map or of a list.
fn fill(entries: &mut Value, with: &Value) {
    let fill_one = |it: &mut Value| {
        if it.is_null() {
            *it = with.clone();
        }
    };
    match entries {
        Value::Object(map) => map.values_mut().for_each(fill_one),
        Value::Array(list) => list.iter_mut().for_each(fill_one),
        _ => {}
    }
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

fn quote_resources(holder: &mut Value) {
    quote_entries(holder.pointer_mut("/resources/requests"));
    quote_entries(holder.pointer_mut("/resources/limits"));
}

fn quote_entries(list: Option<&mut Value>) {
    for (_, amount) in list.and_then(Value::as_object_mut).into_iter().flatten() {
        quote(Some(amount));
    }
}

fn quote(value: Option<&mut Value>) {
    if let Some(value) = value
        && value.is_number()
    {
        *value = Value::String(value.to_string());
    }
}

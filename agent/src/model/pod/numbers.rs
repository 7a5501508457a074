//! Quantities written as bare numbers (`cpu: 2`), and nothing written for a text or a quantity (`labels: {a: }`): the
//! API accepts them, and the typed v1.Pod does not.

use serde_json::Value;

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

/// Puts what the API reads where nothing stands for the text of a map or of a list, or for a quantity: the empty text,
/// and 0. To be done before the document is read as a v1.Pod.
pub fn fill_nulls(pod: &mut Value) {
    for map in [
        "/metadata/labels",
        "/metadata/annotations",
        "/spec/nodeSelector",
    ] {
        fill(pod.pointer_mut(map), "");
    }
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    fill(spec.get_mut("overhead"), "0");
    fill_resources(spec);
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        for container in list(spec.get_mut(field)) {
            fill_resources(container);
            for texts in ["command", "args"] {
                fill(container.get_mut(texts), "");
            }
        }
    }
}

fn fill_resources(holder: &mut Value) {
    fill(holder.pointer_mut("/resources/requests"), "0");
    fill(holder.pointer_mut("/resources/limits"), "0");
}

/// The entries of a map or of a list.
fn fill(entries: Option<&mut Value>, with: &str) {
    let fill_one = |it: &mut Value| {
        if it.is_null() {
            *it = with.into();
        }
    };
    match entries {
        Some(Value::Object(map)) => map.values_mut().for_each(fill_one),
        Some(Value::Array(list)) => list.iter_mut().for_each(fill_one),
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

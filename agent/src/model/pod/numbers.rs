//! Quantities written as bare numbers (`cpu: 2`), which the API accepts and the typed v1.Pod does
//! not.

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

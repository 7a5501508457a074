//! The configuration of edgecore (KubeEdge 1.22, `EdgeCoreConfig` v1alpha2), as far as it is that of the kubelet in it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::fault::{ConfigError, Fault, FieldPath};
use super::{KUBELET_API_VERSION, KUBELET_KIND};
use crate::model::document::{Budget, parse_yaml_where_the_last_counts};

/// Where it is, unless `--config` says otherwise (edge/cmd/edgecore/app/options/options.go).
pub const DEFAULT_EDGECORE_FILE: &str = "/etc/kubeedge/config/edgecore.yaml";

/// What edgecore has for its kubelet where the file has nothing, and kubelet has something else
/// (staging/src/github.com/kubeedge/api/apis/componentconfig/edgecore/v1alpha2/default_kubelet_configuration.go). A map
/// of the file is put on top of its own, so thresholds that are not given are those by default.
const DEFAULTS: [(&str, bool); 2] = [
    ("failSwapOn", false),
    ("mergeDefaultEvictionSettings", true),
];

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeCore {
    /// A KubeletConfiguration, as text.
    pub kubelet: String,
    /// `None`: kubelet's own.
    pub root_directory: Option<PathBuf>,
}

impl EdgeCore {
    /// `file` is where the text is from.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let fault = |field: FieldPath, message: String| ConfigError {
            faults: vec![Fault {
                file: Some(file.to_owned()),
                field,
                message,
            }],
        };
        let root = FieldPath::root();
        let all = parse_yaml_where_the_last_counts(text, Budget::default());
        let (all, _) = all.map_err(|it| fault(root.clone(), it.to_string()))?;
        let edged = root.field("modules").field("edged");
        let section = |it: &Value, name: &str| it.get(name).filter(|it| !it.is_null()).cloned();
        let found = section(&all, "modules").and_then(|it| section(&it, "edged"));
        let found = found.unwrap_or_default();
        let kubelet = match section(&found, "tailoredKubeletConfig") {
            Some(Value::Object(fields)) => fields,
            None => Map::new(),
            Some(_) => {
                let at = edged.field("tailoredKubeletConfig");
                let message = "is not a mapping; right would be a KubeletConfiguration";
                return Err(fault(at, message.to_owned()));
            }
        };
        let mut fields: Map<String, Value> = DEFAULTS
            .map(|(name, is_on)| (name.to_owned(), is_on.into()))
            .into_iter()
            .collect();
        fields.extend(kubelet.into_iter().filter(|(_, value)| !value.is_null()));
        for (name, right) in [("apiVersion", KUBELET_API_VERSION), ("kind", KUBELET_KIND)] {
            fields.insert(name.to_owned(), right.into());
        }
        let root_directory = section(&found, "rootDirectory");
        let root_directory = root_directory.as_ref().and_then(Value::as_str);
        Ok(Self {
            kubelet: Value::Object(fields).to_string(),
            root_directory: root_directory
                .filter(|it| !it.is_empty())
                .map(PathBuf::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_inside_has_the_section_and_what_edgecore_puts_in() {
        let file = Path::new("/e.yaml");
        for (text, root_directory, kubelet) in [
            (
                "modules: {edged: {rootDirectory: /data/kubelet, tailoredKubeletConfig: {evictionHard: \
                 {memory.available: 500Mi}, failSwapOn: true, maxPods: null}}, edgeHub: {enable: true}}",
                Some("/data/kubelet"),
                serde_json::json!({"evictionHard": {"memory.available": "500Mi"}, "failSwapOn": true}),
            ),
            (
                "modules: {edged: {rootDirectory: '', tailoredKubeletConfig: null}}",
                None,
                serde_json::json!({"failSwapOn": false}),
            ),
            (
                "kind: EdgeCore",
                None,
                serde_json::json!({"failSwapOn": false}),
            ),
            ("modules: 7", None, serde_json::json!({"failSwapOn": false})),
        ] {
            let found = EdgeCore::parse(file, text).expect("it is understood");
            assert_eq!(
                found.root_directory.as_deref(),
                root_directory.map(Path::new)
            );
            let mut right = kubelet;
            right["apiVersion"] = KUBELET_API_VERSION.into();
            right["kind"] = KUBELET_KIND.into();
            right["mergeDefaultEvictionSettings"] = true.into();
            let found: Value = serde_json::from_str(&found.kubelet).expect("it is a document");
            assert_eq!(found, right, "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_told_of_the_file() {
        for (text, why) in [
            ("a: [", "/e.yaml: "),
            (
                "modules: {edged: {tailoredKubeletConfig: [1]}}",
                "/e.yaml: modules.edged.tailoredKubeletConfig: is not a mapping",
            ),
        ] {
            let error = EdgeCore::parse(Path::new("/e.yaml"), text).expect_err(text);
            assert!(error.to_string().starts_with(why), "{error}");
        }
    }
}

//! `ballast explain`.

mod node;
mod pod;

pub use self::node::render_node;
pub use self::pod::render_pod;
use super::client::{Client, ClientError};
use super::format::printable;
use super::{CliError, ExplainNodeArgs, ExplainPodArgs, ExplainTarget, Output, Screen};
use crate::model::admission::canonical_json;
use crate::model::status::{ApiVersion, PlacementPolicies};
use crate::observe::protocol::{Answer, ExplainRequest, Request};

/// Adds one line. Writing to a string does not fail.
macro_rules! add_line {
    ($out:expr, $($arg:tt)*) => {{
        use std::fmt::Write;
        let _ = writeln!($out, $($arg)*);
    }};
}
use add_line;

/// Asks the agent, and shows what it says.
pub fn explain(target: &ExplainTarget, screen: &mut Screen) -> Result<(), CliError> {
    let text = match target {
        ExplainTarget::Pod(args) => explain_pod(args, screen)?,
        ExplainTarget::Node(args) => explain_node(args, screen)?,
    };
    screen.write(&text).map(|_| ())
}

fn explain_pod(args: &ExplainPodArgs, screen: &Screen) -> Result<String, CliError> {
    let name = &args.name;
    let namespace = match (&name.namespace, &args.namespace) {
        (Some(named), Some(given)) if named != given => {
            return Err(CliError::TwoNamespaces {
                named: named.clone(),
                given: given.clone(),
            });
        }
        (named, given) => named.clone().or_else(|| given.clone()),
    };
    let request = Request::Explain(ExplainRequest {
        api_version: ApiVersion::V1Alpha1,
        pod: name.name.clone(),
        namespace,
    });
    let mut client = Client::ask(&args.socket.path()?, &request, false)?;
    let Some(Answer::Explanation(explained)) = client.next_answer()? else {
        return Err(ClientError::NoAnswer.into());
    };
    if args.record {
        return match &explained.record {
            Some(record) => Ok(canonical_json(record)),
            None => Err(CliError::NoRecord {
                pod: format!("{}/{}", explained.pod.namespace, explained.pod.name),
                why: match explained.record_fault {
                    Some(fault) => fault,
                    None => pod::no_record(explained.is_managed).to_owned(),
                },
            }),
        };
    }
    match args.output {
        Output::Text => Ok(render_pod(&explained, screen.width, screen.has_colour)),
        Output::Json => json(&*explained),
    }
}

fn explain_node(node: &ExplainNodeArgs, screen: &Screen) -> Result<String, CliError> {
    let args = &node.status;
    let mut client = Client::ask(&args.socket.path()?, &Request::status(), false)?;
    let Some(Answer::Status(status)) = client.next_answer()? else {
        return Err(ClientError::NoAnswer.into());
    };
    let own = &status.node.name;
    if let Some(asked) = node.name.as_ref().filter(|it| *it != own) {
        let (own, asked) = (own.clone(), asked.clone());
        return Err(CliError::OtherNode { own, asked });
    }
    match args.output {
        Output::Text => Ok(render_node(&status, screen.width, screen.has_colour)),
        Output::Json => json(&status.node),
    }
}

fn json(answer: &impl serde::Serialize) -> Result<String, CliError> {
    let json = serde_json::to_string_pretty(answer);
    let json = json.map_err(|source| ClientError::Answer { source })?;
    Ok(json + "\n")
}

/// `policies: CPU static (full-pcpus-only=true), ...`.
fn policies_text(policies: &PlacementPolicies) -> String {
    let with_options = |policy: &str, options: &[String]| match options {
        [] => policy.to_owned(),
        options => format!("{policy} ({})", options.join(", ")),
    };
    let pairs = |options: &std::collections::BTreeMap<String, String>| -> Vec<String> {
        let pairs = options.iter();
        pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    };
    let mut topology = vec![format!("scope {}", policies.topology_manager_scope)];
    topology.extend(pairs(&policies.topology_manager_options));
    let text = format!(
        "policies: CPU {}, memory {}, topology {}",
        with_options(&policies.cpu_manager, &pairs(&policies.cpu_manager_options)),
        policies.memory_manager,
        with_options(&policies.topology_manager, &topology),
    );
    printable(&text).into_owned()
}

#[cfg(test)]
mod tests;

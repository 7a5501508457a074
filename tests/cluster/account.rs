//! The agent as a pod of the cluster: by a service account, with the rights that somebody gives it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ballast::model::api_server::ApiServerStatus;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{ApiWay, NAME, Namespace, cluster, new_agent};
use ballast_tests::wait::until;

use super::kills::stays;
use super::neighbours::told;
use super::workloads::kills_of;

const ACCOUNT: &str = "ballast";

/// The role of `deploy/clusterrole-observe.yaml`, given to the account of the test.
struct Binding<'a>(&'a Namespace);

impl<'a> Binding<'a> {
    const NAME: &'static str = "ballast-account";

    fn new(namespace: &'a Namespace) -> Result<Self> {
        let account = format!("--serviceaccount={}:{ACCOUNT}", namespace.name);
        let role = "--clusterrole=ballast-observe";
        let create = ["create", "clusterrolebinding", Self::NAME, role, &account];
        namespace.kubectl(&create, None)?;
        Ok(Self(namespace))
    }
}

impl Drop for Binding<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "clusterrolebinding", Self::NAME];
        if let Err(error) = self.0.kubectl(&delete, None) {
            eprintln!("{error:#}");
        }
    }
}

/// What kubelet puts into the pod of an agent.
struct Mounted(PathBuf);

impl Mounted {
    fn new(agent: &mut Agent, way: &ApiWay) -> Result<Self> {
        let directory = agent.dir.join("account");
        fs::create_dir(&directory)?;
        let authority = cluster()?.join("certificates/ca.crt");
        fs::copy(authority, directory.join("ca.crt"))?;
        let script = format!(
            "mount -t tmpfs none /run
            mkdir -p /var/run/secrets/kubernetes.io
            ln -s {} /var/run/secrets/kubernetes.io/serviceaccount
            exec \"$@\"",
            directory.display()
        );
        agent.start_by(&["unshare", "-m"], &script);
        let address = way.address();
        agent.environment.extend([
            ("KUBERNETES_SERVICE_HOST", address.ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", address.port().to_string()),
            ("NODE_NAME", NAME.to_owned()),
        ]);
        Ok(Self(directory))
    }

    /// A token of the account that there is now.
    fn renew(&self, namespace: &Namespace) -> Result<()> {
        let token = namespace.kubectl(&["create", "token", ACCOUNT], None)?;
        let new = self.0.join("new");
        fs::write(&new, token.trim())?;
        Ok(fs::rename(&new, self.token())?)
    }

    fn token(&self) -> PathBuf {
        self.0.join("token")
    }
}

fn source(agent: &Agent) -> Result<ApiServerStatus> {
    agent.status()?.node.api_server.context("nobody is asked")
}

/// It has no right at first, and its account goes and comes again: what it may not is named, and all is told in the end.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_in_a_pod_does_what_its_account_may() -> Result<()> {
    let namespace = Namespace::new("account")?;
    let create = ["create", "serviceaccount", ACCOUNT];
    namespace.kubectl(&create, None)?;
    let way = ApiWay::new("account")?;
    let mut agent = new_agent("cluster-account")?;
    let mounted = Mounted::new(&mut agent, &way)?;
    mounted.renew(&namespace)?;
    agent.start()?;
    let script = "tail /dev/zero; exec sleep 3600";
    namespace.run("early", script, "32Mi")?;
    until("what it may not is named", || {
        let api = source(&agent)?;
        let of_pods = api.fault.clone().unwrap_or_default();
        let events = api.events.context("it is told")?;
        let of_events = events.fault.unwrap_or_default();
        ensure!(
            of_pods.starts_with("watch pods: ")
                && of_pods.contains("cannot watch resource \"pods\""),
            "{of_pods}"
        );
        ensure!(
            of_events.starts_with("create Events: ")
                && of_events.contains("cannot create resource \"events\""),
            "{of_events}"
        );
        ensure!(
            (events.waiting, events.dropped) == (1, 0),
            "{}",
            events.waiting
        );
        Ok(())
    })?;
    let binding = Binding::new(&namespace)?;
    stays("it is told and counted", || {
        check(&agent, &namespace, &["early"])
    })?;

    namespace.kubectl(&["delete", "serviceaccount", ACCOUNT], None)?;
    // An API server knows a token for some seconds more.
    until("its token is worth nothing", || {
        way.cut();
        way.mend();
        let fault = source(&agent)?.fault.unwrap_or_default();
        ensure!(fault.starts_with("watch pods: Unauthorized"), "{fault}");
        Ok(())
    })?;
    namespace.run("late", script, "32Mi")?;
    namespace.kubectl(&create, None)?;
    mounted.renew(&namespace)?;
    stays("both are told and counted", || {
        check(&agent, &namespace, &["early", "late"])
    })?;
    let events = source(&agent)?.events.context("it is told")?;
    ensure!((events.sent, events.dropped) == (2, 0), "{events:?}");
    drop(binding);
    Ok(())
}

/// Each of the pods had one kill.
fn check(agent: &Agent, namespace: &Namespace, pods: &[&str]) -> Result<()> {
    let api = source(agent)?;
    ensure!(api.is_followed(), "{:?}", api.fault);
    let told = told(namespace)?;
    ensure!(told.len() == pods.len(), "{told:?}");
    for pod in pods {
        ensure!(told.get(*pod) == Some(&1), "{pod} in {told:?}");
        let counted = kills_of(agent, &namespace.name, "Pod", pod)?;
        ensure!(counted == Some(1.0), "{counted:?} in {pod}");
    }
    Ok(())
}

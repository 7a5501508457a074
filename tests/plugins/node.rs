//! The agent's side in this process, plugins in others, in a directory of their own.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};

use anyhow::ensure;
use ballast::device_plugin::{
    Answer, Call, Deadlines, DevicePlugins, DevicePluginsConfig, PluginError, PluginEvent,
    PluginId, Question, REGISTRATION_SOCKET, StartError,
};
use ballast::grpc::client::{Channel, Method};
use ballast::grpc::messages::device_plugin::{Empty, RegisterRequest, path};
use ballast::model::device::{Device, PluginOptions};
use ballast_tests::scratch::own_name;
use ballast_tests::wait::{patience, until};
use tokio::runtime::Runtime;
use tonic::Status;

pub(crate) struct Node {
    directory: PathBuf,
    config: DevicePluginsConfig,
    tokio: Runtime,
    plugins: Option<DevicePlugins>,
    events: Receiver<PluginEvent>,
    children: Vec<Child>,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_deadlines(name, Deadlines::default())
    }

    pub(crate) fn with_deadlines(name: &str, deadlines: Deadlines) -> Self {
        let directory = env::temp_dir().join(own_name(name));
        fs::create_dir(&directory).unwrap();
        let config = DevicePluginsConfig {
            directory: directory.join("device-plugins"),
            registry_directory: Some(directory.join("plugins_registry")),
            deadlines,
        };
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut node = Self {
            directory,
            config,
            tokio,
            plugins: None,
            events: mpsc::channel().1,
            children: Vec::new(),
        };
        node.restart();
        node
    }

    /// Ends the agent's side, and begins another that knows nothing.
    pub(crate) fn restart(&mut self) {
        self.plugins = None;
        let socket = self.config.directory.join(REGISTRATION_SOCKET);
        until("the socket of the agent before is gone", || {
            ensure!(!socket.exists(), "{} is there", socket.display());
            Ok(())
        })
        .unwrap();
        let (sender, events) = mpsc::channel();
        self.events = events;
        let sink = move |event| sender.send(event).unwrap_or_default();
        let plugins = DevicePlugins::start(&self.config, self.tokio.handle(), sink);
        self.plugins = Some(plugins.unwrap());
    }

    /// A second agent on the same directory.
    pub(crate) fn start_another(&self) -> Result<DevicePlugins, StartError> {
        DevicePlugins::start(&self.config, self.tokio.handle(), |_| {})
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Starts an example plugin; the number is for `kill` and `wait_output`.
    pub(crate) fn spawn(&mut self, resource: &str, n_devices: &str, options: &[&str]) -> usize {
        let output = File::create(self.output(self.children.len())).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_example_device_plugin"))
            .arg(&self.config.directory)
            .args([resource, n_devices])
            .args(options)
            .stdout(output)
            .spawn()
            .unwrap();
        self.children.push(child);
        self.children.len() - 1
    }

    fn output(&self, child: usize) -> PathBuf {
        self.directory.join(format!("output-{child}"))
    }

    pub(crate) fn wait_output(&self, child: usize, line: &str) {
        until(&format!("a line {line}"), || {
            let text = fs::read_to_string(self.output(child))?;
            ensure!(text.lines().any(|it| it == line), "{text}");
            Ok(())
        })
        .unwrap();
    }

    pub(crate) fn kill(&mut self, child: usize) {
        self.children[child].kill().unwrap();
        self.children[child].wait().unwrap();
    }

    #[track_caller]
    pub(crate) fn event(&self) -> PluginEvent {
        self.events.recv_timeout(patience()).expect("an event")
    }

    #[track_caller]
    pub(crate) fn connected(&self, resource: &str) -> (PluginId, PluginOptions) {
        match self.event() {
            PluginEvent::Connected { plugin, options } if plugin.resource == resource => {
                (plugin, options)
            }
            other => panic!("{other:?} instead of {resource} connected"),
        }
    }

    /// The next list of devices.
    #[track_caller]
    pub(crate) fn devices(&self, of: &PluginId) -> Vec<Device> {
        match self.event() {
            PluginEvent::Devices { plugin, devices } if plugin == *of => devices,
            other => panic!("{other:?} instead of devices of {of}"),
        }
    }

    pub(crate) fn begin_ask(
        &self,
        resource: &str,
        call: Call,
    ) -> Receiver<Result<Answer, PluginError>> {
        let (sender, answer) = mpsc::channel();
        let question = Question {
            resource: resource.to_owned(),
            call,
        };
        let plugins = self.plugins.as_ref().unwrap();
        plugins.ask(question, move |it| sender.send(it).unwrap_or_default());
        answer
    }

    #[track_caller]
    pub(crate) fn ask(&self, resource: &str, call: Call) -> Result<Answer, PluginError> {
        let answer = self.begin_ask(resource, call).recv_timeout(patience());
        answer.expect("an answer")
    }

    pub(crate) fn register(&self, request: RegisterRequest) -> Result<(), Status> {
        self.begin_register(request)
            .recv_timeout(patience())
            .expect("an answer")
    }

    pub(crate) fn begin_register(&self, request: RegisterRequest) -> Receiver<Result<(), Status>> {
        let (sender, answer) = mpsc::channel();
        let socket = self.config.directory.join(REGISTRATION_SOCKET);
        self.tokio.spawn(async move {
            let method = Method {
                path: path::REGISTER,
                max_answer: 1 << 10,
            };
            let channel = Channel::connect(&socket).await.unwrap();
            let answer = channel.unary::<_, Empty>(method, request, patience()).await;
            sender.send(answer.map(|_| ())).unwrap_or_default();
        });
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|it| (*it).to_owned()).collect()
}

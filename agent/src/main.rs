//! The `ballast` program: arguments, the files that the configuration names, the exit status. No
//! logic.
#![expect(
    clippy::disallowed_methods,
    reason = "the configuration and its environment are read here, so that `config` reads nothing"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io, panic, process, thread};

use anyhow::{Context, Result};
use ballast::cli::{self, CheckArgs, Command, LogFormatArg, Output, ReplayArgs, RunArgs, Screen};
use ballast::config::{
    self, Config, ConfigError, Draft, Fault, FieldPath, Loaded, LogFormat, LogLevel,
};
use ballast::observe::log::{self, LogError, LogStyle};
use ballast::run::Replayed;
use ballast::sys::input::{self, MAX_CONFIG_BYTES};
use ballast::sys::syscall;
use ballast::{observe, run};

/// What `ballast check` judges the node against when no configuration is given: the defaults.
const DEFAULT_CONFIG: &str =
    "{apiVersion: ballast.dev/v1alpha1, kind: AgentConfiguration, mode: own}";

/// What a part of a configuration is put below.
const DEFAULT_HEAD: &str =
    "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";

/// Bad usage or configuration.
const BAD_CONFIG: u8 = 2;

fn main() -> ExitCode {
    syscall::limit_name_services();
    match cli::parse().command {
        Command::Run(args) => {
            let status = run_agent(&args);
            log::flush();
            status
        }
        Command::Status(args) => {
            let mut out = io::stdout().lock();
            finish(cli::status(
                &args,
                &mut Screen::stdout(&mut out, is_plain()),
            ))
        }
        Command::Events(args) => {
            let mut out = io::stdout().lock();
            finish(cli::events(
                &args,
                &mut Screen::stdout(&mut out, is_plain()),
            ))
        }
        Command::Top(args) => {
            // Not locked: a panic of another thread gives the terminal back through stdout too.
            let mut out = io::stdout();
            finish(cli::top(&args, &mut Screen::stdout(&mut out, is_plain())))
        }
        Command::Explain(target) => {
            let mut out = io::stdout().lock();
            finish(cli::explain(
                &target,
                &mut Screen::stdout(&mut out, is_plain()),
            ))
        }
        Command::Replay(args) => replay(&args),
        Command::Check(args) => check_node(&args),
    }
}

/// The user wants no colour (no-color.org).
fn is_plain() -> bool {
    env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
}

fn finish(result: Result<(), cli::CliError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ballast: {}", observe::chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// A thread that panics ends the agent, in a build whose panics unwind as in the release, whose do not:
/// half an agent is worse than none. Nor does it wait for ever for a reader of its report.
fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |it| {
        let thread = thread::Builder::new().name("abort".to_owned());
        let abort = || {
            thread::sleep(log::LAST_WORDS);
            process::abort()
        };
        // Where none can be started the report may be the last thing that is waited for.
        thread.spawn(abort).ok();
        log::flush();
        report(it);
        process::abort();
    }));
}

fn run_agent(args: &RunArgs) -> ExitCode {
    abort_on_panic();
    syscall::limit_heap();
    syscall::set_common_umask();
    let draft = match load(&args.config) {
        Ok(draft) => draft,
        Err(error) => {
            eprintln!("ballast: {error:#}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    if !draft.faults.is_empty() {
        return refuse(&args.config, run::config_faults(&draft));
    }
    let loaded = draft.loaded;
    let config = loaded.config.clone();
    let style = match (args.log_format, config.log.format) {
        (Some(LogFormatArg::Text), _) | (None, LogFormat::Text) => LogStyle::Text,
        (Some(LogFormatArg::Json), _) | (None, LogFormat::Json) => LogStyle::Json,
        (Some(LogFormatArg::Auto), _) | (None, LogFormat::Auto) => LogStyle::for_stderr(),
    };
    let filter =
        env::var("BALLAST_LOG").unwrap_or_else(|_| log_filter(config.log.level).to_owned());
    match log::init(style, &filter) {
        Ok(()) => {}
        Err(error @ LogError::Filter { .. }) => {
            let error = observe::chain(&error);
            eprintln!("ballast: BALLAST_LOG or log.level: {error}");
            return ExitCode::from(BAD_CONFIG);
        }
        Err(error) => {
            eprintln!("ballast: {}", observe::chain(&error));
            return ExitCode::FAILURE;
        }
    }
    for warning in run::config_warnings(&loaded) {
        tracing::warn!(config = %args.config.display(), "{warning}");
    }
    match serde_json::to_string(&config) {
        Ok(text) => tracing::info!(config = text, "effective configuration"),
        Err(error) => tracing::warn!(%error, "the effective configuration cannot be shown"),
    }
    match run::run(config, loaded.kubelet_fields) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (faults, others) = error.into_faults(&loaded.origins);
            for error in others {
                tracing::error!(error = observe::chain(&error), "the agent cannot run");
            }
            if faults.is_empty() {
                return ExitCode::FAILURE;
            }
            let error = ConfigError { faults }.to_string();
            tracing::error!(config = %args.config.display(), error, "the configuration does not fit");
            ExitCode::from(BAD_CONFIG)
        }
    }
}

fn refuse(config: &Path, faults: Vec<Fault>) -> ExitCode {
    let config = config.display();
    eprintln!(
        "ballast: configuration {config}: {}",
        ConfigError { faults }
    );
    ExitCode::from(BAD_CONFIG)
}

/// What the node gives the agent, with every eBPF program tried for a moment and nothing pinned.
fn check_node(args: &CheckArgs) -> ExitCode {
    let loaded = match &args.config {
        Some(path) => load(path),
        None => {
            Config::draft(DEFAULT_CONFIG, None, &[], Vec::new()).context("default configuration")
        }
    };
    let draft = match loaded {
        Ok(draft) => draft,
        Err(error) => {
            eprintln!("ballast: {error:#}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    // Nobody has asked for the places and addresses of the default.
    let is_given = args.config.is_some();
    let faults = match is_given {
        true => run::config_faults(&draft),
        false => Vec::new(),
    };
    let path = args.config.as_deref().unwrap_or(Path::new("default"));
    // Of what is at fault a report would take the defaults.
    if !draft.faults.is_empty() {
        return refuse(path, faults);
    }
    let report = run::check(&draft.loaded.config, is_given);
    let text = match args.output {
        Output::Text => report.to_string(),
        Output::Json => match serde_json::to_string_pretty(&report) {
            Ok(text) => text + "\n",
            Err(error) => {
                eprintln!("ballast: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    let mut out = io::stdout().lock();
    if let Err(error) = Screen::stdout(&mut out, is_plain()).write(&text) {
        return finish(Err(error));
    }
    for warning in run::config_warnings(&draft.loaded) {
        eprintln!("ballast: configuration {}: {warning}", path.display());
    }
    match faults.is_empty() {
        // What else there is to say of the node is in the report.
        true => ExitCode::from(report.exit_status()),
        false => refuse(path, faults),
    }
}

/// What was decided again on stdout; what of an admission came out otherwise on stderr.
fn replay(args: &ReplayArgs) -> ExitCode {
    let other = match args.policy.as_deref().map(load_part).transpose() {
        Ok(other) => other.map(|it| it.config),
        Err(error) => {
            eprintln!("ballast: {error:#}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let replayed = match run::replay(&args.file, other.as_ref()) {
        Ok(replayed) => replayed,
        Err(error) => {
            eprintln!("ballast: {}", observe::chain(&error));
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let (text, differences, is_same) = match &replayed {
        Replayed::Admission(it) => {
            let is_same = it.differences.is_empty();
            (it.text.clone(), it.differences_text(), is_same)
        }
        Replayed::Story(it) => {
            let text = match args.output {
                Output::Text => Ok(it.text()),
                Output::Json => serde_json::to_string_pretty(it).map(|it| it + "\n"),
            };
            match text {
                Ok(text) => (text, String::new(), it.is_same()),
                Err(error) => {
                    eprintln!("ballast: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    };
    let mut out = io::stdout().lock();
    if let Err(error) = Screen::stdout(&mut out, is_plain()).write(&text) {
        return finish(Err(error));
    }
    eprint!("{differences}");
    match is_same {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// A configuration of which parts will do: what it lacks at the top is as in the default one.
fn load_part(path: &Path) -> Result<Loaded> {
    let text = input::text(path, MAX_CONFIG_BYTES)?;
    let is_whole = text
        .lines()
        .any(|it| it.starts_with("apiVersion:") || it.starts_with('{'));
    if is_whole {
        let in_file = || format!("configuration {}", path.display());
        return load(path)?.finish().with_context(in_file);
    }
    let whole = format!("{DEFAULT_HEAD}{text}");
    Config::from_yaml(&whole, None, &[]).with_context(|| format!("policy {}", path.display()))
}

/// What is logged at a level.
fn log_filter(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    }
}

/// Kubelet's drop-ins of a directory and of those in it; as kubelet, it follows no link to one of them.
fn drop_ins_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else if name.to_str().is_some_and(config::is_drop_in) && entry.path().is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// The configuration with the files that it names, as far as they can be read.
fn load(path: &Path) -> Result<Draft> {
    let text = input::text(path, MAX_CONFIG_BYTES)?;
    let needed = config::files_needed(&text);
    let mut unread = Vec::new();
    let mut read = |path: PathBuf, field: &str| match input::text(&path, MAX_CONFIG_BYTES) {
        Ok(text) => Some((path, text)),
        Err(error) => {
            unread.push(unreadable(field, observe::chain(&error)));
            None
        }
    };
    let kubelet = needed
        .kubelet_config_file
        .and_then(|path| read(path, "kubeletConfigFile"));
    let field = "kubeletConfigDirectory";
    let directory = needed.kubelet_config_directory;
    let paths = directory.as_deref().map_or(Ok(Vec::new()), drop_ins_below);
    let drop_ins = paths.as_deref().unwrap_or_default().iter();
    let drop_ins: Vec<_> = drop_ins.filter_map(|it| read(it.clone(), field)).collect();
    if let (Err(error), Some(directory)) = (paths, directory) {
        let message = format!("list {}: {error}", directory.display());
        unread.push(unreadable(field, message));
    }
    let kubelet = kubelet
        .as_ref()
        .map(|(path, text)| (path.as_path(), text.as_str()));
    Config::draft(&text, kubelet, &drop_ins, unread)
        .with_context(|| format!("configuration {}", path.display()))
}

fn unreadable(field: &str, message: String) -> Fault {
    Fault {
        file: None,
        field: FieldPath::of(field),
        message,
    }
}

#[cfg(test)]
mod tests {
    use ballast::cli::Cli;
    use ballast::config::{Mode, PodsConfig};
    use clap::Parser;

    use super::*;

    #[test]
    fn the_unit_of_systemd_fits_the_command_line_and_the_shipped_configuration() {
        let unit = include_str!("../../deploy/systemd/ballast.service");
        let value = |key: &str| {
            let mut values = unit
                .lines()
                .filter_map(|it| it.strip_prefix(key)?.strip_prefix('='));
            let value = values.next().unwrap_or_default();
            assert_eq!(values.next(), None, "{key} twice");
            value
        };
        let line = value("ExecStart");
        assert!(line.starts_with("/usr/bin/ballast "), "{line}");
        let cli = Cli::try_parse_from(line.split(' '));
        let Ok(Cli {
            command: Command::Run(args),
        }) = cli
        else {
            panic!("{cli:?}");
        };

        let shipped = Config::from_yaml(include_str!("../../deploy/config.yaml"), None, &[]);
        let shipped = shipped.expect("the shipped file has no faults").config;
        let Mode::Own(own) = &shipped.mode else {
            panic!("{:?}", shipped.mode);
        };
        let PodsConfig::Manifests { manifest_directory } = &own.pods;
        assert_eq!(
            args.config,
            manifest_directory.with_file_name("config.yaml")
        );
        let directories = [
            args.config.parent().unwrap_or(&args.config),
            &shipped.state_directory,
            &own.kubelet_directory,
        ];
        let mounts: Vec<&Path> = value("RequiresMountsFor")
            .split(' ')
            .map(Path::new)
            .collect();
        assert_eq!(mounts, directories);
        let adj = shipped.kubelet.oom_score_adj.to_string();
        assert_eq!(value("OOMScoreAdjust"), adj);

        // Pods outlive it.
        assert_eq!(value("KillMode"), "process");
        for sets in [
            "Bind",
            "DynamicUser",
            "Inaccessible",
            "Mount",
            "Private",
            "Protect",
            "ReadOnly",
            "ReadWrite",
            "Root",
            "TemporaryFileSystem",
        ] {
            let hides = unit.lines().find(|it| it.starts_with(sets));
            assert_eq!(hides, None, "mounts of its own");
        }
    }

    #[test]
    fn drop_ins_are_found_in_directories_of_the_directory() -> io::Result<()> {
        let base = std::env::temp_dir().join(format!("ballast-drop-ins-{}", std::process::id()));
        let files = [
            "10-a.conf",
            "notes.txt",
            "site/5-b.conf",
            "site/deep/20-c.conf",
        ];
        for file in files {
            let path = base.join(file);
            fs::create_dir_all(path.parent().unwrap_or(&base))?;
            fs::write(path, "")?;
        }
        // As in a ConfigMap that is mounted: the file is one, what it leads through is not.
        std::os::unix::fs::symlink("site", base.join("link"))?;
        std::os::unix::fs::symlink("site/5-b.conf", base.join("linked.conf"))?;
        let found = drop_ins_below(&base);
        fs::remove_dir_all(&base)?;
        let mut found = found?;
        found.sort();
        let right = [
            "10-a.conf",
            "linked.conf",
            "site/5-b.conf",
            "site/deep/20-c.conf",
        ];
        assert_eq!(found, right.map(|it| base.join(it)));
        Ok(())
    }
}

//! The images of the cluster, as one OCI layout: nothing is pulled.
//!
//! A test's image is busybox, or the program that misbehaves on demand; the image of a pod's sandbox is busybox that
//! sleeps.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::progress;

/// The names that pods use. No registry has such a host.
pub(super) const SANDBOX: &str = "localhost/ballast/pause:1";
const BUSYBOX: &str = "localhost/ballast/busybox:1";
const HOG: &str = "localhost/ballast/hog:1";

/// Writes the layout as the archive `to`; `directory` is for its parts. `busybox` and `hog` are linked statically.
pub(super) fn write(busybox: &Path, hog: &Path, directory: &Path, to: &Path) -> Result<()> {
    let blobs = Blobs::new(directory)?;
    let system = blobs.system(busybox)?;
    let load = blobs.program(hog, "hog")?;
    let system = std::slice::from_ref(&system);
    let images = [
        blobs.image(BUSYBOX, system, &json!({"Cmd": ["/bin/sh"]}))?,
        blobs.image(
            SANDBOX,
            system,
            &json!({"Entrypoint": ["/bin/sleep", "2147483647"]}),
        )?,
        blobs.image(HOG, &[load], &json!({"Entrypoint": ["/bin/hog"]}))?,
    ];
    blobs.write("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}))?;
    blobs.write(
        "index.json",
        &json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": images,
        }),
    )?;
    archive(&blobs.layout, to)
}

struct Blobs {
    /// Where layers are put together.
    parts: PathBuf,
    layout: PathBuf,
}

impl Blobs {
    fn new(directory: &Path) -> Result<Self> {
        let blobs = Self {
            parts: directory.join("parts"),
            layout: directory.join("layout"),
        };
        fs::create_dir_all(blobs.layout.join("blobs/sha256")).context("create the OCI layout")?;
        Ok(blobs)
    }

    fn write(&self, name: &str, content: &Value) -> Result<()> {
        let path = self.layout.join(name);
        fs::write(&path, content.to_string()).with_context(|| format!("write {}", path.display()))
    }

    /// The descriptor of one uncompressed layer with busybox under the name of each of its applets.
    fn system(&self, busybox: &Path) -> Result<Value> {
        let root = self.parts.join("system");
        install(busybox, &root, "busybox")?;
        for directory in ["etc", "root", "tmp"] {
            fs::create_dir(root.join(directory)).context("create the layer")?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))
            .context("the mode of /tmp")?;
        for applet in progress::quiet(Command::new(busybox).arg("--list"))?.split_whitespace() {
            if applet != "busybox" {
                symlink("busybox", root.join("bin").join(applet))
                    .with_context(|| format!("link {applet}"))?;
            }
        }
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n";
        fs::write(root.join("etc/passwd"), users).context("write /etc/passwd")?;
        self.layer(&root)
    }

    /// The descriptor of one uncompressed layer with one program.
    fn program(&self, program: &Path, name: &str) -> Result<Value> {
        let root = self.parts.join(name);
        install(program, &root, name)?;
        self.layer(&root)
    }

    fn layer(&self, root: &Path) -> Result<Value> {
        let layer = self.parts.join("layer.tar");
        archive(root, &layer)?;
        self.keep(&layer, "application/vnd.oci.image.layer.v1.tar")
    }

    /// The descriptor of an image of these layers.
    fn image(&self, name: &str, layers: &[Value], config: &Value) -> Result<Value> {
        let digests: Vec<_> = layers.iter().map(|it| &it["digest"]).collect();
        let config = self.keep_json(
            &json!({
                "architecture": "amd64",
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": digests},
            }),
            "application/vnd.oci.image.config.v1+json",
        )?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": layers,
        });
        let mut descriptor = self.keep_json(&manifest, media_type)?;
        descriptor["annotations"] = json!({"io.containerd.image.name": name});
        Ok(descriptor)
    }

    fn keep_json(&self, content: &Value, media_type: &str) -> Result<Value> {
        let path = self.parts.join("blob.json");
        fs::write(&path, content.to_string()).context("write a blob")?;
        self.keep(&path, media_type)
    }

    /// Moves a file to the blobs.
    fn keep(&self, path: &Path, media_type: &str) -> Result<Value> {
        let sum = progress::quiet(Command::new("sha256sum").arg(path))?;
        let sum = sum
            .split_whitespace()
            .next()
            .context("sha256sum said nothing")?;
        let size = fs::metadata(path).context("the size of a blob")?.len();
        let blob = self.layout.join("blobs/sha256").join(sum);
        fs::rename(path, blob).context("keep a blob")?;
        Ok(json!({"mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size}))
    }
}

/// Puts a program into `bin` below `root`.
fn install(program: &Path, root: &Path, name: &str) -> Result<()> {
    let directory = root.join("bin");
    fs::create_dir_all(&directory).context("create the layer")?;
    let to = directory.join(name);
    fs::copy(program, &to).with_context(|| format!("copy {}", program.display()))?;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("the mode of {name}"))
}

/// The same bytes each time.
fn archive(directory: &Path, to: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--mtime=@0", "--create", "--file"])
        .arg(to)
        .arg("--directory")
        .arg(directory)
        .arg(".");
    progress::quiet(&mut tar).map(drop)
}

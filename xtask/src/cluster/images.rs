//! The images of the cluster, as one OCI layout: nothing is pulled.
//!
//! A test's image is busybox; the image of a pod's sandbox is busybox that sleeps.

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

/// Writes the layout as the archive `to`; `directory` is for its parts.
pub(super) fn write(busybox: &Path, directory: &Path, to: &Path) -> Result<()> {
    let blobs = Blobs::new(directory)?;
    let layer = blobs.layer(busybox)?;
    let images = [
        blobs.image(BUSYBOX, &layer, &json!({"Cmd": ["/bin/sh"]}))?,
        blobs.image(
            SANDBOX,
            &layer,
            &json!({"Entrypoint": ["/bin/sleep", "2147483647"]}),
        )?,
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
    fn layer(&self, busybox: &Path) -> Result<Value> {
        let root = self.parts.join("root");
        for directory in ["bin", "etc", "root", "tmp"] {
            fs::create_dir_all(root.join(directory)).context("create the layer")?;
        }
        let program = root.join("bin/busybox");
        fs::copy(busybox, &program).with_context(|| format!("copy {}", busybox.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .context("the mode of busybox")?;
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
        let layer = self.parts.join("layer.tar");
        archive(&root, &layer)?;
        self.keep(&layer, "application/vnd.oci.image.layer.v1.tar")
    }

    /// The descriptor of an image of one layer.
    fn image(&self, name: &str, layer: &Value, config: &Value) -> Result<Value> {
        let config = self.keep_json(
            &json!({
                "architecture": "amd64",
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
            }),
            "application/vnd.oci.image.config.v1+json",
        )?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": [layer],
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

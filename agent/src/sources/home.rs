//! Home directories of users of this node, from `/etc/passwd`: containers of the process runtime have its files.

use crate::sys::Root;

const PASSWD: &str = "/etc/passwd";

/// `None`: the user has none there, or the file cannot be read.
pub fn home_of(uid: u32) -> Option<String> {
    home_in_file(&Root::host(), PASSWD, uid)
}

fn home_in_file(root: &Root, path: &str, uid: u32) -> Option<String> {
    let text = root.read_text(path).ok()?;
    text.lines().find_map(|line| home_in(line, uid))
}

/// passwd(5): `name:password:UID:GID:GECOS:directory:shell`.
fn home_in(line: &str, uid: u32) -> Option<String> {
    let mut fields = line.split(':').skip(2);
    let of: u32 = fields.next()?.parse().ok()?;
    let home = fields.nth(2)?;
    (of == uid && home.starts_with('/')).then(|| home.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn the_first_line_of_a_user_that_names_a_directory_counts() {
        let node = Scratch::new("home");
        let root = Root::at(node.directory());
        assert_eq!(home_in_file(&root, "/passwd", 0), None);
        node.write(
            "passwd",
            "# comment\nroot:x:0:0:root:/root:/bin/bash\nbad:x:one\napp:x:1000:1000:A,,,:/srv/app:/bin/sh\n\
             again:x:1000:1000::/srv/again:\nnobody:x:65534:65534:nobody::\n",
        );
        for (uid, home) in [
            (0, Some("/root")),
            (1000, Some("/srv/app")),
            (65534, None),
            (7, None),
        ] {
            assert_eq!(
                home_in_file(&root, "/passwd", uid).as_deref(),
                home,
                "{uid}"
            );
        }
    }
}

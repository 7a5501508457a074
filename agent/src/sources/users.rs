//! Users of this node, from `/etc/passwd` and `/etc/group`: containers of the process runtime have its files.

use std::collections::BTreeSet;

use crate::sys::{FsError, Root};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// What the files say of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// `None`: it has no absolute path.
    pub home: Option<String>,
    /// The primary group.
    pub gid: u32,
    /// Groups that list the user as a member.
    pub groups: BTreeSet<u32>,
}

/// `None`: the user is not listed, or there is no `/etc/passwd`.
pub fn user(uid: u32) -> Result<Option<User>, FsError> {
    user_in(&Root::host(), uid)
}

fn user_in(root: &Root, uid: u32) -> Result<Option<User>, FsError> {
    let users = root.read_text_if_any(PASSWD)?.unwrap_or_default();
    let mut entries = users.lines().filter_map(Entry::parse);
    let Some(entry) = entries.find(|it| it.uid == uid) else {
        return Ok(None);
    };
    let groups = root.read_text_if_any(GROUP)?.unwrap_or_default();
    let groups = groups.lines().filter_map(|line| group_of(line, entry.name));
    Ok(Some(User {
        home: entry.home.starts_with('/').then(|| entry.home.to_owned()),
        gid: entry.gid,
        groups: groups.collect(),
    }))
}

/// passwd(5): `name:password:UID:GID:GECOS:directory:shell`.
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        Some(Self {
            name: fields.next()?,
            uid: fields.nth(1)?.parse().ok()?,
            gid: fields.next()?.parse().ok()?,
            home: fields.nth(1)?,
        })
    }
}

/// group(5): `name:password:GID:user,user`. `None`: `user` is not among them.
fn group_of(line: &str, user: &str) -> Option<u32> {
    let mut fields = line.split(':').skip(2);
    let gid = fields.next()?.parse().ok()?;
    let mut members = fields.next()?.split(',');
    members.any(|it| it == user).then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn the_first_line_of_a_user_counts_and_every_group_that_lists_it() {
        let node = Scratch::new("users");
        let root = Root::at(node.directory());
        assert_eq!(user_in(&root, 0).expect("nothing fails"), None);
        root.create_dir_all("/etc").expect("a new directory");
        node.write(
            "etc/passwd",
            "# comment\nroot:x:0:0:root:/root:/bin/bash\nbad:x:one\napp:x:1000:1001:A,,,:/srv/app:/bin/sh\n\
             again:x:1000:7::/srv/again:\nnobody:x:65534:65534:nobody::\n",
        );
        let user = |uid| {
            let user = user_in(&root, uid).expect("nothing fails")?;
            let groups: Vec<u32> = user.groups.into_iter().collect();
            Some((user.home, user.gid, groups))
        };
        let home = |path: &str| Some(path.to_owned());
        assert_eq!(user(1000), Some((home("/srv/app"), 1001, vec![])));
        node.write(
            "etc/group",
            "root:x:0:\nrender:x:105:again,app\nbad:x:one:app\napps:x:1001:\nvideo:x:44:app\nshort:x:9\n",
        );
        assert_eq!(user(0), Some((home("/root"), 0, vec![])));
        assert_eq!(user(1000), Some((home("/srv/app"), 1001, vec![44, 105])));
        assert_eq!(user(65534), Some((None, 65534, vec![])));
        assert_eq!(user(7), None);
    }

    /// As without a free descriptor.
    #[test]
    fn a_file_that_cannot_be_read_is_not_one_without_the_user() {
        let node = Scratch::new("unread-users");
        let root = Root::at(node.directory());
        root.create_dir_all("/etc").expect("a new directory");
        node.unreadable("etc/group");
        node.write("etc/passwd", "app:x:1000:1001::/srv/app:/bin/sh\n");
        assert!(user_in(&root, 1000).is_err());
        assert_eq!(user_in(&root, 7).expect("nothing fails"), None);
        root.remove_file("/etc/passwd").expect("it is there");
        node.unreadable("etc/passwd");
        assert!(user_in(&root, 7).is_err());
    }
}

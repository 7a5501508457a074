//! What a question says of who asks it: the header `Authorization`, and those of whom the agent asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::read;
use super::worker::Worker;
use crate::sys::clock;

/// How old a token of a file can be that is still sent: a rotated one is good for minutes beside the new one, and
/// what is read has a kilobyte.
const REREAD: Duration = Duration::from_secs(10);

/// To read it. A question does not wait longer for a file system that hangs.
const READ: Duration = Duration::from_secs(1);

/// Text that nobody is shown.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// To be sent, and not to be shown.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The header of a question.
#[derive(Clone, Debug)]
pub(super) enum Authorization {
    None,
    Fixed(HeaderValue),
    File(Arc<TokenFile>),
}

impl Authorization {
    pub(super) async fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::None => None,
            Self::Fixed(header) => Some(header.clone()),
            Self::File(file) => Some(file.header().await),
        }
    }
}

/// A token that others replace while it is in use. The last one that was read stays in use until there is another: some
/// remove the file once it was read (<https://github.com/kubernetes/kubernetes/issues/68164>).
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    files: Arc<Worker>,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    header: HeaderValue,
    /// Boottime of when it was read, or was to be read.
    read: Duration,
}

impl TokenFile {
    /// Reads it. `otherwise`: in use until it can be read. `files` reads it again.
    pub(super) fn new(
        path: PathBuf,
        otherwise: Option<&Secret>,
        files: Arc<Worker>,
    ) -> Result<Arc<Self>, String> {
        let header = match (read_token(&path), otherwise) {
            (Err(_), Some(token)) => bearer("token", token)?,
            (header, _) => header?,
        };
        let read = clock::boottime();
        let last = Mutex::new(Last { header, read });
        Ok(Arc::new(Self { path, files, last }))
    }

    async fn header(&self) -> HeaderValue {
        if self.is_due(clock::boottime()) {
            let path = self.path.clone();
            let read = self.files.run(READ, move || read_token(&path)).await;
            if let Ok(Ok(header)) = read {
                self.with_last(|it| it.header = header);
            }
        }
        self.with_last(|it| it.header.clone())
    }

    /// Nobody else is to read it then.
    fn is_due(&self, now: Duration) -> bool {
        self.with_last(|it| {
            let is_old = now.saturating_sub(it.read) >= REREAD;
            if is_old {
                it.read = now;
            }
            is_old
        })
    }

    fn with_last<T>(&self, what: impl FnOnce(&mut Last) -> T) -> T {
        what(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn read_token(path: &std::path::Path) -> Result<HeaderValue, String> {
    let bytes = read(path).map_err(|it| format!("tokenFile: {it}"))?;
    let token = String::from_utf8_lossy(&bytes);
    bearer("tokenFile", &Secret::new(token))
}

/// Blanks and line ends around it are not part of a token.
pub(super) fn bearer(field: &str, token: &Secret) -> Result<HeaderValue, String> {
    let token = token.reveal().trim_ascii();
    let is_word = !token.is_empty() && token.bytes().all(|it| it.is_ascii_graphic());
    let header = HeaderValue::try_from(format!("Bearer {token}")).ok();
    match header.filter(|_| is_word) {
        Some(header) => Ok(sensitive(header)),
        None => Err(format!(
            "{field}: has no token; right would be one word of visible ASCII characters"
        )),
    }
}

pub(super) fn basic(user: &str, password: &Secret) -> HeaderValue {
    let both = BASE64_STANDARD.encode(format!("{user}:{}", password.reveal()));
    let header = HeaderValue::try_from(format!("Basic {both}"));
    sensitive(header.expect("base64 is visible ASCII"))
}

fn sensitive(mut header: HeaderValue) -> HeaderValue {
    header.set_sensitive(true);
    header
}

/// For whom the agent asks, in the terms of a kubeconfig.
#[derive(Debug, Default)]
pub(super) struct Impersonated {
    pub(super) user: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl Impersonated {
    pub(super) fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let is_more = self.uid.is_some() || !self.groups.is_empty() || !self.extra.is_empty();
        if self.user.is_none() && is_more {
            return Err(
                "as: is missing; right would be the user of `as-uid`, `as-groups` and `as-user-extra`"
                    .to_owned(),
            );
        }
        let user = self.user.iter();
        let user = user.map(|it| ("as", "impersonate-user".to_owned(), it));
        let uid = self.uid.iter();
        let uid = uid.map(|it| ("as-uid", "impersonate-uid".to_owned(), it));
        let groups = self.groups.iter();
        let groups = groups.map(|it| ("as-groups", "impersonate-group".to_owned(), it));
        let extra = self.extra.iter().flat_map(|(key, values)| {
            let name = format!("impersonate-extra-{}", escaped(key));
            let values = values.iter();
            values.map(move |it| ("as-user-extra", name.clone(), it))
        });
        let all = user.chain(uid).chain(groups).chain(extra);
        all.map(|(field, name, value)| header(field, &name, value))
            .collect()
    }
}

fn header(field: &str, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name = name.parse::<HeaderName>().ok();
    let value = HeaderValue::from_str(value).ok();
    name.zip(value)
        .ok_or_else(|| format!("{field}: has a character that no header can have"))
}

/// As the API server reads the names of headers: what is no letter of a name is `%` and two digits
/// (staging/src/k8s.io/client-go/transport/round_trippers.go, `headerKeyEscape`).
fn escaped(key: &str) -> String {
    let escape = |it: u8| match it {
        b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`'
        | b'|' | b'~' => char::from(it).to_string(),
        _ if it.is_ascii_alphanumeric() => char::from(it).to_string(),
        _ => format!("%{it:02X}"),
    };
    key.bytes().map(escape).collect()
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the file that is read; a failed fixture fails the test"
)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    fn shown(header: &HeaderValue) -> &str {
        header.to_str().unwrap()
    }

    #[test]
    fn a_token_is_one_word_and_is_not_shown() {
        let header = bearer("token", &Secret::new(" abc.d-e\n")).unwrap();
        assert_eq!(shown(&header), "Bearer abc.d-e");
        assert!(!format!("{header:?}").contains("abc"));
        assert!(!format!("{:?}", Secret::new("abc")).contains("abc"));
        for wrong in ["", " \n", "abc def", "abc\ndef", "abcé", "abc\0"] {
            let why = bearer("token", &Secret::new(wrong)).unwrap_err();
            assert!(why.starts_with("token: has no token"), "{why}");
            assert!(!why.contains("abc"), "{why}");
        }
        let header = basic("Aladdin", &Secret::new("open sesame"));
        assert_eq!(shown(&header), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[tokio::test]
    async fn a_token_file_is_read_anew_and_its_last_token_stays() {
        let scratch = Scratch::new("token");
        let path = scratch.path("token");
        let fallback = Secret::new("fallback");
        let files = Arc::new(Worker::start("test").unwrap());
        assert!(TokenFile::new(path.clone(), None, Arc::clone(&files)).is_err());
        let file = TokenFile::new(path.clone(), Some(&fallback), files).unwrap();
        let age = |file: &TokenFile| file.with_last(|it| it.read = Duration::ZERO);
        for (text, right) in [
            (None, "Bearer fallback"),
            (Some("one\n"), "Bearer one"),
            (Some(""), "Bearer one"),
            (Some("two"), "Bearer two"),
            (None, "Bearer two"),
        ] {
            match text {
                Some(text) => drop(scratch.write("token", text)),
                None => std::fs::remove_file(&path).unwrap_or_default(),
            }
            age(&file);
            assert_eq!(shown(&file.header().await), right, "{text:?}");
        }
        scratch.write("token", "three");
        assert_eq!(shown(&file.header().await), "Bearer two", "it is young");
    }

    #[test]
    fn who_is_impersonated_is_in_headers_of_its_own() {
        let mut of = Impersonated {
            user: Some("jane".to_owned()),
            uid: Some("7".to_owned()),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: BTreeMap::from([("Acme.com/Scope%".to_owned(), vec!["x y".to_owned()])]),
        };
        let headers = of.headers().unwrap();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), shown(value)))
            .collect();
        let right = [
            ("impersonate-user", "jane"),
            ("impersonate-uid", "7"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-extra-acme.com%2fscope%25", "x y"),
        ];
        assert_eq!(headers, right);
        of.uid = Some("7\n".to_owned());
        assert!(of.headers().unwrap_err().starts_with("as-uid: "));
        of.user = None;
        assert!(of.headers().unwrap_err().starts_with("as: is missing"));
        assert!(Impersonated::default().headers().unwrap().is_empty());
    }
}

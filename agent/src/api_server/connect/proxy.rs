//! The HTTP proxy on the way to the API server.

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Scheme;
use hyper_util::client::proxy::matcher::Matcher;

use super::no_proxy;

/// Where it is, and what it is told of who asks.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    pub(super) uri: Uri,
    pub(super) authorization: Option<HeaderValue>,
}

impl Proxy {
    /// `url`: `http://[USER:PASSWORD@]HOST[:PORT]`; no error shows it.
    pub(super) fn new(field: &str, url: &str) -> Result<Self, String> {
        let uri = url.parse::<Uri>().ok();
        let has_host = uri
            .as_ref()
            .and_then(Uri::host)
            .is_some_and(|it| !it.is_empty());
        match uri.as_ref().and_then(Uri::scheme_str) {
            Some("http") if has_host => {}
            Some(scheme @ ("https" | "socks5" | "socks5h")) => {
                return Err(format!(
                    "{field}: is a proxy of {scheme}; right would be one of http"
                ));
            }
            _ => {
                return Err(format!(
                    "{field}: is no URL of a proxy; right would be http://HOST:PORT"
                ));
            }
        }
        let matcher = Matcher::builder().all(url).build();
        // Any server that it is for.
        let found = matcher.intercept(&Uri::from_static("https://server"));
        let found = found.ok_or_else(|| format!("{field}: is no URL of a proxy"))?;
        Ok(Self {
            uri: found.uri().clone(),
            authorization: found.basic_auth().cloned(),
        })
    }

    /// By `HTTPS_PROXY` and `NO_PROXY`, as Go's programs hear them. A server without TLS is asked without a proxy.
    /// `None`: there is none on the way.
    pub(super) fn of_environment(
        server: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let any = |names: [&'static str; 2]| {
            let mut all = names.into_iter();
            all.find_map(|it| Some((it, variable(it)?)))
        };
        let Some((name, url)) = any(["HTTPS_PROXY", "https_proxy"]) else {
            return Ok(None);
        };
        let direct = any(["NO_PROXY", "no_proxy"]).map(|(_, it)| it);
        let is_encrypted = server.scheme() == Some(&Scheme::HTTPS);
        if !is_encrypted || no_proxy::is_direct(server, &direct.unwrap_or_default()) {
            return Ok(None);
        }
        let url = match url.contains("://") {
            true => url,
            false => format!("http://{url}"),
        };
        Self::new(name, &url).map(Some)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    fn shown(proxy: &Proxy) -> (String, &str) {
        let authorization = proxy.authorization.as_ref();
        let authorization = authorization.map(|it| it.to_str().unwrap());
        (proxy.uri.to_string(), authorization.unwrap_or_default())
    }

    #[test]
    fn a_proxy_is_one_of_http() {
        for (url, uri, authorization) in [
            ("http://proxy:3128", "http://proxy:3128/", ""),
            ("http://[::1]:3128/", "http://[::1]:3128/", ""),
            // user:pa@ss
            (
                "http://user:pa%40ss@proxy:1",
                "http://proxy:1/",
                "Basic dXNlcjpwYUBzcw==",
            ),
        ] {
            let proxy = Proxy::new("proxy-url", url).unwrap();
            assert_eq!(shown(&proxy), (uri.to_owned(), authorization));
            assert!(!format!("{proxy:?}").contains("dXNl"));
        }
        for (url, right) in [
            ("https://u:secret@proxy", "proxy-url: is a proxy of https;"),
            (
                "socks5://u:secret@proxy",
                "proxy-url: is a proxy of socks5;",
            ),
            ("ftp://u:secret@proxy", "proxy-url: is no URL"),
            ("proxy:3128", "proxy-url: is no URL"),
            ("http:// u:secret@proxy", "proxy-url: is no URL"),
            ("", "proxy-url: is no URL"),
        ] {
            let why = Proxy::new("proxy-url", url).unwrap_err();
            assert!(why.starts_with(right), "{url}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn the_environment_says_which_servers_have_a_proxy() {
        let proxy = |server: &str, variables: &[(&str, &str)]| {
            let server = server.parse::<Uri>().unwrap();
            let found = Proxy::of_environment(&server, |name| {
                let mut all = variables.iter();
                all.find_map(|(it, value)| (*it == name).then(|| (*value).to_owned()))
            });
            found.map(|it| it.map_or_else(String::new, |it| it.uri.to_string()))
        };
        let some = ("HTTPS_PROXY", "http://proxy:1");
        for (server, variables, right) in [
            ("https://a.b", &[][..], ""),
            ("https://a.b", &[some], "http://proxy:1/"),
            (
                "https://a.b",
                &[("https_proxy", "proxy:1")],
                "http://proxy:1/",
            ),
            ("https://a.b", &[some, ("NO_PROXY", "b")], ""),
            ("https://a.b", &[some, ("no_proxy", "b")], ""),
            // As Go has it: what is in large letters comes first.
            (
                "https://a.b",
                &[some, ("NO_PROXY", "c"), ("no_proxy", "b")],
                "http://proxy:1/",
            ),
            (
                "https://a.b",
                &[("https_proxy", "http://other:1"), some],
                "http://proxy:1/",
            ),
            ("https://localhost", &[some], ""),
            ("http://a.b", &[some], ""),
        ] {
            assert_eq!(
                proxy(server, variables).unwrap(),
                right,
                "{server} {variables:?}"
            );
        }
        let why = proxy("https://a.b", &[("https_proxy", "socks5://proxy")]).unwrap_err();
        assert!(
            why.starts_with("https_proxy: is a proxy of socks5"),
            "{why}"
        );
    }
}

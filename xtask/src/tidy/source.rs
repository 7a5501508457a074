//! Rust sources, split into code and comments. No parser: rules that need types are clippy's.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directories with sources. Not `target/`, nor anything that begins with a dot.
const ROOTS: [&str; 4] = ["agent", "ebpf", "tests", "xtask"];

/// A source file. `code` and `comments` have the lines and columns of the file: what belongs to the
/// other, or is in a literal, is blank.
pub(super) struct SourceFile {
    /// Relative to the root of the checkout.
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) code: String,
    pub(super) comments: String,
}

impl SourceFile {
    pub(super) fn new(path: PathBuf, text: String) -> Self {
        let (code, comments) = split(&text);
        Self {
            path,
            text,
            code,
            comments,
        }
    }
}

/// The line that holds the byte at `offset`, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset]
        .iter()
        .filter(|it| **it == b'\n')
        .count()
        + 1
}

/// Every `.rs` file of the checkout, in order of path.
pub(super) fn read_all(root: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    for it in ROOTS {
        collect(&root.join(it), "rs", &mut paths)?;
    }
    paths.sort();
    paths.iter().map(|path| read(root, path)).collect()
}

fn read(root: &Path, path: &Path) -> Result<SourceFile> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(SourceFile::new(
        path.strip_prefix(root).unwrap_or(path).to_owned(),
        text,
    ))
}

/// Files below `directory` whose name ends in `.extension`.
pub(super) fn collect(directory: &Path, extension: &str, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", directory.display()))?;
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&path, extension, into)?;
        } else if path.extension().is_some_and(|it| it == extension) {
            into.push(path);
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Code and comments of `text`.
fn split(text: &str) -> (String, String) {
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (kind, length) = next_piece(rest, code.chars().next_back());
        let (piece, after) = rest.split_at(length);
        for (target, of) in [(&mut code, Kind::Code), (&mut comments, Kind::Comment)] {
            if kind == of {
                target.push_str(piece);
            } else {
                // As many bytes, so that offsets stay.
                target.extend(piece.bytes().map(|it| if it == b'\n' { '\n' } else { ' ' }));
            }
        }
        rest = after;
    }
    (code, comments)
}

/// Kind and length in bytes of what `rest` begins with; `before` is the character before it.
fn next_piece(rest: &str, before: Option<char>) -> (Kind, usize) {
    let first = rest.chars().next().map_or(0, char::len_utf8);
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    let inside_a_word = before.is_some_and(|it| it.is_alphanumeric() || it == '_');
    if !inside_a_word && let Some(length) = string(rest) {
        return (Kind::Literal, length);
    }
    if rest.starts_with('\'')
        && let Some(length) = character(rest)
    {
        return (Kind::Literal, length);
    }
    // A quote that ends the prefix of a literal is inside a word: `b"` was seen above.
    if rest.starts_with('"') {
        return (Kind::Literal, quoted(rest, 1));
    }
    (Kind::Code, first)
}

/// Length of a block comment, those inside it included.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of the string literal that `rest` begins with, prefix included.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|it| {
            it.starts_with('"')
                || (prefix.ends_with('r')
                    && it.trim_start_matches('#').starts_with('"')
                    && it.starts_with('#'))
        })
    })?;
    let body = &rest[prefix.len()..];
    if !prefix.ends_with('r') {
        return Some(quoted(rest, prefix.len() + 1));
    }
    let hashes = body.len() - body.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    let start = prefix.len() + hashes + 1;
    Some(
        rest[start..]
            .find(&end)
            .map_or(rest.len(), |it| start + it + end.len()),
    )
}

/// Length up to and with the quote that ends the literal whose body begins at `start`.
fn quoted(rest: &str, start: usize) -> usize {
    let bytes = rest.as_bytes();
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        let (at, _) = characters.skip(1).find(|(_, it)| *it == '\'')?;
        return Some(at + 1);
    }
    match characters.next()? {
        (at, '\'') => Some(at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, code: &str, comments: &str) {
        let (found_code, found_comments) = split(text);
        assert_eq!(found_code.len(), text.len(), "{text}");
        assert_eq!(found_comments.len(), text.len(), "{text}");
        let words = |it: &str| it.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&found_code), code, "code of {text}");
        assert_eq!(words(&found_comments), comments, "comments of {text}");
    }

    #[test]
    fn code_comments_and_literals_are_told_apart() {
        check("a // b\nc", "a c", "// b");
        check("a /* b /* c */ d */ e", "a e", "/* b /* c */ d */");
        check(r#"f("// no \" comment") // yes"#, "f( )", "// yes");
        check(r###"r#"a " // b"# c"###, "c", "");
        check(r#"b"x" c"y" br"z" d"#, "d", "");
        check("'\"' 'a' '\\'' x", "x", "");
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)", "");
        check("var\"s\"", "var", "");
        check("\"ä // \" b", "b", "");
    }

    #[test]
    fn lines_are_counted_from_one() {
        assert_eq!(line_of("a\nb", 0), 1);
        assert_eq!(line_of("a\nb", 2), 2);
    }
}

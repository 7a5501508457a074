//! Shapes and texts of a picture, with coordinates to a tenth of a pixel.

use std::fmt::Write as _;

/// A rectangle on the page, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    pub(super) fn new(x: f64, y: f64, width: f64, height: f64) -> Self {
        Self {
            x,
            y,
            width,
            height,
        }
    }
}

/// Which part of a text is at the point that it is written to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Align {
    Start,
    Middle,
    End,
}

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stroke {
    Solid,
    Dashed,
}

/// A picture in the making.
pub(super) struct Svg(String);

const FONT: &str = "Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif";

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="{FONT}">
<!-- Written by cargo xtask dashboards. -->
<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" fill="{}"/></pattern></defs>
"#,
            super::TEXT
        ))
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a text cannot fail.
        let _always_ok = writeln!(self.0, "{element}");
    }

    pub(super) fn rectangle(&mut self, area: Area, fill: &str) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
    }

    pub(super) fn framed(&mut self, area: Area, fill: &str, edge: &str) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="3" fill="{fill}" stroke="{edge}"/>"#
        ));
    }

    pub(super) fn rule(&mut self, from: (f64, f64), to: (f64, f64), color: &str, stroke: Stroke) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let dash = dash(stroke);
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}"{dash}/>"#
        ));
    }

    /// A line through the points.
    pub(super) fn line(&mut self, points: &[(f64, f64)], color: &str, stroke: Stroke) {
        let (path, dash) = (path(points), dash(stroke));
        self.push(format_args!(
            r#"<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linejoin="round"{dash}/>"#
        ));
    }

    /// What is inside of the points.
    pub(super) fn fill(&mut self, points: &[(f64, f64)], color: &str, opacity: f64) {
        let path = path(points);
        self.push(format_args!(
            r#"<path d="{path}Z" fill="{color}" fill-opacity="{opacity}"/>"#
        ));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        self.push(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{color}"/>"#
        ));
    }

    pub(super) fn chevron(&mut self, x: f64, y: f64, color: &str) {
        self.line(
            &[(x - 4.0, y), (x, y + 4.0), (x + 4.0, y)],
            color,
            Stroke::Solid,
        );
    }

    pub(super) fn text(
        &mut self,
        at: (f64, f64),
        size: f64,
        color: &str,
        align: Align,
        text: &str,
    ) {
        let anchor = match align {
            Align::Start => "",
            Align::Middle => r#" text-anchor="middle""#,
            Align::End => r#" text-anchor="end""#,
        };
        self.words(at, size, color, anchor, text);
    }

    pub(super) fn bold(&mut self, at: (f64, f64), size: f64, color: &str, text: &str) {
        self.words(at, size, color, r#" font-weight="600""#, text);
    }

    /// Large, in the middle.
    pub(super) fn number(&mut self, at: (f64, f64), size: f64, color: &str, text: &str) {
        let style = r#" font-weight="600" text-anchor="middle""#;
        self.words(at, size, color, style, text);
    }

    fn words(&mut self, (x, y): (f64, f64), size: f64, color: &str, style: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{color}"{style}>{text}</text>"#
        ));
    }
}

fn dash(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "",
        Stroke::Dashed => r#" stroke-dasharray="7 5""#,
    }
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let verb = if index == 0 { 'M' } else { 'L' };
        let _always_ok = write!(path, "{verb}{x:.1} {y:.1}");
    }
    path
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// About how wide a text is; fonts differ.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let narrow = text
        .chars()
        .filter(|it| "iljtfr.,:;'|/ ".contains(*it))
        .count() as f64;
    let all = text.chars().count() as f64;
    size * (0.6 * (all - narrow) + 0.34 * narrow)
}

/// `text`, cut so that it is not wider than `most`.
pub(super) fn fit(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let mut cut = text.to_owned();
    while !cut.is_empty() && width(&cut, size) + size > most {
        cut.pop();
    }
    cut.trim_end().to_owned() + "…"
}

/// `color` (`#rrggbb`) made lighter (0) to darker (1).
pub(super) fn shade(color: &str, darkness: f64) -> String {
    let part = |at: usize| {
        let part = color.get(at..at + 2).unwrap_or("80");
        let part = f64::from(u8::from_str_radix(part, 16).unwrap_or(128));
        let lighter = part + (255.0 - part) * 0.45;
        let darker = part * 0.5;
        format!("{:02x}", whole(lighter + (darker - lighter) * darkness))
    };
    format!("#{}{}{}", part(1), part(3), part(5))
}

/// 0 to 255.
fn whole(part: f64) -> u8 {
    format!("{:.0}", part.clamp(0.0, 255.0))
        .parse()
        .unwrap_or(u8::MAX)
}

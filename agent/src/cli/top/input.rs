//! Keys as the application knows them, of what the terminal sends.

use ratatui_crossterm::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::app::Message;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, which is a key and no signal while the terminal is in raw mode.
    Interrupt,
    /// Ctrl-Z, likewise.
    Suspend,
    /// Ctrl-L: the screen is to be drawn anew.
    Redraw,
    Char(char),
}

/// `None`: nothing that would change what is shown.
pub(super) fn message(event: &Event) -> Option<Message> {
    match event {
        Event::Key(event) if event.kind != KeyEventKind::Release => key(event).map(Message::Key),
        Event::Resize(..) => Some(Message::Resized),
        _ => None,
    }
}

fn key(event: &KeyEvent) -> Option<Key> {
    let has_control = event.modifiers.contains(KeyModifiers::CONTROL);
    let key = match event.code {
        KeyCode::Char('c' | 'd') if has_control => Key::Interrupt,
        KeyCode::Char('z') if has_control => Key::Suspend,
        KeyCode::Char('l') if has_control => Key::Redraw,
        KeyCode::Char(_) if has_control || event.modifiers.contains(KeyModifiers::ALT) => {
            return None;
        }
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    };
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_by_their_modifiers_and_a_release_is_none() {
        let plain = KeyModifiers::NONE;
        for (code, modifiers, expected) in [
            (KeyCode::Char('c'), plain, Some(Key::Char('c'))),
            (
                KeyCode::Char('c'),
                KeyModifiers::CONTROL,
                Some(Key::Interrupt),
            ),
            (
                KeyCode::Char('z'),
                KeyModifiers::CONTROL,
                Some(Key::Suspend),
            ),
            (
                KeyCode::Char('<'),
                KeyModifiers::SHIFT,
                Some(Key::Char('<')),
            ),
            (KeyCode::Char('q'), KeyModifiers::ALT, None),
            (KeyCode::F(1), plain, None),
            (KeyCode::Esc, plain, Some(Key::Escape)),
        ] {
            let event = KeyEvent::new(code, modifiers);
            assert_eq!(key(&event), expected, "{code:?} {modifiers:?}");
            let release = KeyEvent {
                kind: KeyEventKind::Release,
                ..event
            };
            assert!(message(&Event::Key(release)).is_none(), "{code:?}");
        }
    }
}

//! Parses the input of a terminal into keys. Pure: bytes arrive in pieces, and the caller decides
//! when a sequence has ended.

use termina::event::{Event, KeyCode, KeyEvent, KeyEventKind, Modifiers};

/// Maximum length of an incomplete key, in bytes. The longest key has about ten. The limit discards
/// an unterminated paste or an unexpected reply of the terminal.
const KEY_MAX: usize = 64;

/// A key with a function in the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Confirm, or show details.
    Enter,
    /// Back.
    Escape,
    /// The next field.
    Tab,
    /// The previous field.
    BackTab,
    /// Delete the last character.
    Backspace,
    /// Ctrl-C or Ctrl-D.
    Interrupt,
    /// Ctrl-L: redraw the screen.
    Redraw,
    /// A printable character.
    Char(char),
}

/// Parser for the bytes of a terminal.
#[derive(Debug, Default)]
pub struct Keys {
    parser: termina::Parser,
    pending: usize,
}

impl Keys {
    /// Returns the keys that these bytes complete. An Escape may start a longer sequence; it counts
    /// as a key only in [`Keys::give_up`].
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.parser.parse(&[*byte], true);
            self.pending += 1;
            while let Some(event) = self.parser.pop() {
                self.pending = 0;
                keys.extend(translate(event));
            }
            if self.pending >= KEY_MAX {
                *self = Self::default();
            }
        }
        keys
    }

    /// Returns whether an incomplete key is pending.
    pub fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Ends the pending sequence, and returns its key if it is one.
    pub fn give_up(&mut self) -> Option<Key> {
        self.parser.parse(&[], false);
        let key = self.parser.pop().and_then(translate);
        *self = Self::default();
        key
    }
}

fn translate(event: Event) -> Option<Key> {
    let Event::Key(KeyEvent {
        code, modifiers, kind, ..
    }) = event
    else {
        return None;
    };
    if kind == KeyEventKind::Release {
        return None;
    }
    let with_control = modifiers.contains(Modifiers::CONTROL);
    Some(match code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Escape => Key::Escape,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char('c' | 'd') if with_control => Key::Interrupt,
        KeyCode::Char('l') if with_control => Key::Redraw,
        // Some terminals send Ctrl-H for Backspace and Ctrl-J for Enter.
        KeyCode::Char('h') if with_control => Key::Backspace,
        KeyCode::Char('j') if with_control => Key::Enter,
        KeyCode::Char(character) if !modifiers.intersects(Modifiers::CONTROL | Modifiers::ALT) => Key::Char(character),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    #[test]
    fn bytes_become_keys() {
        for (bytes, expected) in [
            (&b"\x1b[A\x1b[B"[..], vec![Key::Up, Key::Down]),
            (b"\x1bOA\x1bOF\x1b[H", vec![Key::Up, Key::End, Key::Home]),
            (
                b"\x1b[5~\x1b[6~\x1b[Z\t",
                vec![Key::PageUp, Key::PageDown, Key::BackTab, Key::Tab],
            ),
            (
                b"a\r\x7f\x08\n",
                vec![Key::Char('a'), Key::Enter, Key::Backspace, Key::Backspace, Key::Enter],
            ),
            (b"\x03\x04\x0c", vec![Key::Interrupt, Key::Interrupt, Key::Redraw]),
            ("Zü€😀".as_bytes(), "Zü€😀".chars().map(Key::Char).collect()),
            // Alt and Ctrl with a letter are other keys than the letter.
            (b"\x1bx\x11", vec![]),
            // A mouse, a paste's mark, an answer to a question.
            (b"\x1b[<0;1;1M\x1b[200~q\x1b[201~\x1b[1;1Ry", vec![Key::Char('y')]),
            (b"\xff\x00x", vec![Key::Char('x')]),
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(Keys::default().read(bytes), expected, "{text:?}");
        }
    }

    #[test]
    fn incomplete_keys_wait_until_the_end() {
        let mut keys = Keys::default();
        assert_eq!((keys.read(b"\xe2\x82"), keys.is_waiting()), (vec![], true));
        assert_eq!((keys.read(b"\xac"), keys.is_waiting()), (vec![Key::Char('€')], false));
        assert_eq!((keys.read(b"\x1b"), keys.is_waiting()), (vec![], true));
        assert_eq!(keys.read(b"[A"), [Key::Up]);
        assert_eq!((keys.read(b"\x1b"), keys.give_up()), (vec![], Some(Key::Escape)));
        // An unterminated sequence is discarded, and later bytes are keys again.
        assert_eq!((keys.read(b"\x1b]52;c;"), keys.give_up()), (vec![], None));
        assert_eq!(keys.read(b"\x03"), [Key::Interrupt]);
    }

    #[test]
    fn incomplete_input_is_bounded() {
        let mut keys = Keys::default();
        keys.read(b"\x1b]");
        for _ in 0..1000 {
            keys.read(&[b'1'; 100]);
            assert!(keys.pending < KEY_MAX);
        }
    }

    #[test]
    fn random_bytes_are_parsed() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let often = b"\x1b[]OPM<?;:0159~uRIcny\x07\\ \xc3\xe2\xf0\x80";
        let mut keys = Keys::default();
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.random_range(1..24))
                .map(|_| match random.random_range(0..4) {
                    0 => random.random(),
                    _ => often[random.random_range(0..often.len())],
                })
                .collect();
            keys.read(&bytes);
            if random.random_range(0..8) == 0 {
                keys.give_up();
            }
        }
    }
}

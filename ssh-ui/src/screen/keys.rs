//! What a terminal sends → keys. Pure: bytes come as the network cuts them, and when to wait no longer is the caller's to say.

use termina::event::{Event, KeyCode, KeyEvent, KeyEventKind, Modifiers};

/// Bytes of one key that are waited for. The longest that a terminal sends has some ten; of a paste that never ends, or of an
/// answer that nobody asked for, no more is kept.
const KEY_MAX: usize = 64;

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// A screenful up.
    PageUp,
    /// A screenful down.
    PageDown,
    /// To the first.
    Home,
    /// To the last.
    End,
    /// Done, or more of it.
    Enter,
    /// Back.
    Escape,
    /// The next field.
    Tab,
    /// The field before.
    BackTab,
    /// Not this character.
    Backspace,
    /// Ctrl-C or Ctrl-D.
    Interrupt,
    /// Ctrl-L: the screen is drawn anew.
    Redraw,
    /// A character.
    Char(char),
}

/// Keys out of bytes.
#[derive(Debug, Default)]
pub struct Keys {
    parser: termina::Parser,
    pending: usize,
}

impl Keys {
    /// The keys that these bytes complete. An Escape may be the first byte of another key: it is one only after
    /// [`Keys::give_up`].
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

    /// Whether there may be the beginning of a key.
    pub fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Nothing more came: the key that the bytes so far are, if they are one.
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
        // Ctrl-H and Ctrl-J are what some terminals send for Backspace and Enter.
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
    fn what_is_not_whole_waits_until_it_is_given_up() {
        let mut keys = Keys::default();
        assert_eq!((keys.read(b"\xe2\x82"), keys.is_waiting()), (vec![], true));
        assert_eq!((keys.read(b"\xac"), keys.is_waiting()), (vec![Key::Char('€')], false));
        assert_eq!((keys.read(b"\x1b"), keys.is_waiting()), (vec![], true));
        assert_eq!(keys.read(b"[A"), [Key::Up]);
        assert_eq!((keys.read(b"\x1b"), keys.give_up()), (vec![], Some(Key::Escape)));
        // What never ends is forgotten, and keys are keys again.
        assert_eq!((keys.read(b"\x1b]52;c;"), keys.give_up()), (vec![], None));
        assert_eq!(keys.read(b"\x03"), [Key::Interrupt]);
    }

    #[test]
    fn nothing_grows_that_is_not_whole() {
        let mut keys = Keys::default();
        keys.read(b"\x1b]");
        for _ in 0..1000 {
            keys.read(&[b'1'; 100]);
            assert!(keys.pending < KEY_MAX);
        }
    }

    #[test]
    fn no_bytes_break_it() {
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

//! YAML as a tree that knows its lines. Anchors and aliases are refused: a few of them can stand for gigabytes.

use yaml_rust2::parser::{Event, MarkedEventReceiver, Parser};
use yaml_rust2::scanner::Marker;

use crate::{Error, Result};

/// How deep a file may be nested.
const MAX_DEPTH: usize = 32;

/// A value, with the line where it begins.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(pairs) => pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The items of a list; of anything else, itself alone.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The first document of a text.
pub(super) fn parse(text: &str, file: &str) -> Result<Node> {
    let mut reader = Reader { open: Vec::new(), root: None, wrong: None };
    let mut parser = Parser::new_from_str(text);
    let fail = |line: usize, message: String| Error::in_file(file, Some(line), "", message);
    let read = parser.load(&mut reader, false);
    if let Some((line, why)) = reader.wrong {
        return Err(fail(line, why));
    }
    read.map_err(|e| fail(e.marker().line(), format!("this is no well-formed YAML: {}", e.info())))?;
    reader.root.ok_or_else(|| fail(1, "this YAML is empty".into()))
}

/// Collects events into a tree.
struct Reader {
    open: Vec<(Node, Option<String>)>,
    root: Option<Node>,
    wrong: Option<(usize, String)>,
}

impl Reader {
    fn start(&mut self, line: usize, value: Value) {
        if self.open.len() >= MAX_DEPTH {
            self.wrong.get_or_insert((line, format!("more than {MAX_DEPTH} levels")));
            return;
        }
        self.open.push((Node { line, value }, None));
    }

    fn end(&mut self) {
        if let Some((node, _)) = self.open.pop() {
            self.put(node);
        }
    }

    fn put(&mut self, node: Node) {
        match self.open.last_mut() {
            None => {
                self.root.get_or_insert(node);
            }
            Some((Node { value: Value::List(items), .. }, _)) => items.push(node),
            Some((Node { value: Value::Map(pairs), .. }, key)) => match (key.take(), node.value) {
                (Some(name), value) => pairs.push((name, Node { line: node.line, value })),
                (None, Value::Text(name)) => *key = Some(name),
                (None, _) => {
                    self.wrong.get_or_insert((node.line, "a key that is no text".into()));
                }
            },
            Some(_) => {}
        }
    }
}

impl MarkedEventReceiver for Reader {
    fn on_event(&mut self, event: Event, mark: Marker) {
        if self.wrong.is_some() {
            return;
        }
        match event {
            Event::Alias(_) => {
                self.wrong = Some((mark.line(), "it uses an alias (`*name`); write out what is meant".into()))
            }
            Event::Scalar(text, ..) => self.put(Node { line: mark.line(), value: Value::Text(text) }),
            Event::SequenceStart(..) => self.start(mark.line(), Value::List(Vec::new())),
            Event::MappingStart(..) => self.start(mark.line(), Value::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_know_their_lines() {
        let root = parse("a: 1\nb:\n  - x: [2, 3]\n  - y\n", "f").unwrap();
        let b = root.get("b").unwrap().items();
        assert_eq!((b.len(), b[1].line, b[1].text()), (2, 4, Some("y")));
        assert_eq!(b[0].get("x").unwrap().items()[1].text(), Some("3"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let deep = "[".repeat(100) + &"]".repeat(100);
        for (text, word) in [
            ("a: &x [1]\nb: *x\n", "f:2: it uses an alias"),
            (deep.as_str(), "32 levels"),
            ("a: [1", "no well-formed YAML"),
            ("", "empty"),
            ("[a]: b", "key that is no text"),
        ] {
            let error = parse(text, "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

//! The JSON documents of the command line. This is the one place that makes lines of them, so each has its schema's number.

use serde::Serialize;

/// The number of the schema. Within one, keys are added, and none is removed or changes its meaning (docs/reference/json.md).
pub const SCHEMA: u32 = 1;

/// A document with its schema.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    #[serde(flatten)]
    document: &'a T,
}

/// A document as a line. It is an object: only that can have a schema.
pub fn line<T: Serialize>(document: &T) -> String {
    let text = serde_json::to_string(&Document { schema: SCHEMA, document });
    text.unwrap_or_else(|why| serde_json::json!({ "schema": SCHEMA, "error": why.to_string() }).to_string()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_keeps_its_order_behind_its_schema() {
        #[derive(Serialize)]
        struct Two {
            b: u32,
            a: Option<u32>,
        }
        assert_eq!(line(&Two { b: 1, a: None }), "{\"schema\":1,\"b\":1,\"a\":null}\n");
        assert_eq!(line(&json!({ "a": [1] })), "{\"schema\":1,\"a\":[1]}\n");
    }

    #[test]
    fn what_is_no_object_is_an_error_with_a_schema() {
        for wrong in [json!([1]), json!(1)] {
            assert!(line(&wrong).starts_with("{\"error\":"), "{}", line(&wrong));
        }
    }
}

//! The answer to a request of any route: one JSON value, or the server-sent events of a stream.

use serde_json::Value;

use super::answer::{AnswerHead, ApiError, ChatCompletion, ChatDelta};
use super::chat_answer::ChatAnswer;
use super::completion_answer::CompletionAnswer;
use super::options::RequestSampling;
use super::response_answer::ResponseAnswer;
use super::responses::RepeatedKeys;

/// The route of a request, and what of the request its answer repeats.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerForm {
    Chat,
    Completion,
    Response { sampling: RequestSampling, repeated: RepeatedKeys },
}

/// Writes the answer to one request.
#[derive(Debug, Clone)]
pub struct AnswerWriter(RouteWriter);

#[derive(Debug, Clone)]
enum RouteWriter {
    Chat(ChatAnswer),
    Completion(CompletionAnswer),
    Response(Box<ResponseAnswer>),
}

/// The last event of the streams of chats and completions.
const DONE: &str = "data: [DONE]\n\n";

impl AnswerWriter {
    pub fn new(form: AnswerForm, head: AnswerHead, choices: usize) -> Self {
        Self(match form {
            AnswerForm::Chat => RouteWriter::Chat(ChatAnswer::new(head, choices)),
            AnswerForm::Completion => RouteWriter::Completion(CompletionAnswer::new(head, choices)),
            AnswerForm::Response { sampling, repeated } => {
                RouteWriter::Response(Box::new(ResponseAnswer::new(head, sampling, repeated)))
            }
        })
    }

    pub fn whole(self, completion: &ChatCompletion) -> Value {
        match self.0 {
            RouteWriter::Chat(chat) => chat.whole(completion),
            RouteWriter::Completion(answer) => answer.whole(completion),
            RouteWriter::Response(response) => response.whole(completion),
        }
    }

    /// The events before the first token.
    pub fn begin(&mut self, prompt_token_ids: Option<&[u32]>) -> Vec<String> {
        match &mut self.0 {
            RouteWriter::Chat(chat) => data(chat.begin(prompt_token_ids)),
            RouteWriter::Completion(_) => Vec::new(),
            RouteWriter::Response(response) => named(response.begin()),
        }
    }

    /// The events of a part of a choice.
    pub fn delta(&mut self, index: usize, part: &ChatDelta) -> Vec<String> {
        match &mut self.0 {
            RouteWriter::Chat(chat) => data(vec![chat.delta(index, part)]),
            RouteWriter::Completion(answer) => data(vec![answer.delta(index, part)]),
            RouteWriter::Response(response) => named(response.delta(part)),
        }
    }

    /// The events after the last token.
    pub fn finish(&mut self, completion: &ChatCompletion) -> Vec<String> {
        let choices = completion.choices.iter().enumerate();
        let mut events = match &mut self.0 {
            RouteWriter::Chat(chat) => {
                let ends = choices.map(|(index, choice)| chat.finish(index, choice.finish));
                data(ends.chain(chat.usage(completion)).collect())
            }
            RouteWriter::Completion(answer) => {
                let ends = choices.map(|(index, choice)| answer.finish(index, choice.finish));
                data(ends.chain(answer.usage(completion)).collect())
            }
            RouteWriter::Response(response) => return named(response.finish(completion)),
        };
        events.push(DONE.to_owned());
        events
    }

    /// The event that ends a stream whose reply was broken off.
    pub fn fail(&mut self, error: &ApiError) -> String {
        match &mut self.0 {
            RouteWriter::Chat(_) | RouteWriter::Completion(_) => data(vec![error.json()]).concat(),
            RouteWriter::Response(response) => named(vec![response.fail(error)]).concat(),
        }
    }
}

fn data(values: Vec<Value>) -> Vec<String> {
    values.into_iter().map(|value| format!("data: {value}\n\n")).collect()
}

/// Events with their type as their name.
fn named(values: Vec<Value>) -> Vec<String> {
    let event = |value: Value| {
        let kind = value["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {value}\n\n")
    };
    values.into_iter().map(event).collect()
}

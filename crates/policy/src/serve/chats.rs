//! A chat becomes tokens, and tokens a reply. What a session holds already is not shown again.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use furrow_model::template::{Content, Laid};
use furrow_openai::Role;
use furrow_openai::server::{
    ApiError, ChatRequest, Delta, Envelope, Finish, Format, Part, Said, Told, Usage,
};
use furrow_rollout::{FinishReason, Sampling};
use rand::Rng;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::residents::{Digest, Heard, Held, Resident, Residents, Taken};
use super::text::Unfolding;
use crate::config::ServeConfig;
use crate::constrain::{Constraint, ConstraintError, Schema};
use crate::draw::Watch;
use crate::engine::{Fault, Reply};
use crate::model::{Talks, Wanted};
use crate::sequence::{Picture, Placed, Stretch};

/// Answers chats.
pub(super) struct Chats {
    talks: Talks,
    /// Sessions kept, and the places of all.
    pub residents: Residents,
    pub config: ServeConfig,
    /// Seconds since 1970 when this began.
    pub created: u64,
}

/// A chat that is about to be answered.
pub(super) struct Prepared {
    resident: Resident,
    /// What was said, this request's last message included.
    said: Vec<Heard>,
    stretch: Stretch,
    stays: bool,
    sampling: Sampling,
    constraint: Option<Arc<Constraint>>,
    stops: Arc<[String]>,
    /// How many of the likeliest are told beside each token's log-prob; `None`: none is told.
    logprobs: Option<u32>,
    /// Whether ids are told.
    pub ids: bool,
    session_id: Option<String>,
    /// What all parts of the answer have in common.
    pub envelope: Envelope,
}

/// Where parts of a reply go.
pub(super) enum Parts {
    /// Nowhere: it is told whole.
    Gathered,
    /// To somebody who reads them as they come.
    Streamed(mpsc::Sender<Delta>),
}

type Checked<T> = Result<T, ApiError>;

impl Chats {
    pub fn new(talks: Talks, config: ServeConfig) -> Self {
        let residents = Residents::new(config.sessions_max, config.idle);
        Self { talks, residents, config, created: now() }
    }

    /// Tokens of the longest chat.
    pub fn context_tokens_max(&self) -> u32 {
        self.talks.context_tokens_max()
    }

    /// Everything that can be wrong with a request is found here, before the first part of an answer is sent.
    pub async fn prepare(&self, request: ChatRequest) -> Checked<Prepared> {
        let ChatRequest { model, said, sampled, max_tokens, stop, format, session_id, .. } = request;
        self.check_model(&model)?;
        let stop_id = self.talks.template().stop();
        let heard: Vec<Heard> = said.iter().map(|message| heard(message, stop_id)).collect();
        // A request that is wrong, or late, changes nothing: what was taken is put back, and the next one may go on.
        let taken = session_id.as_deref().map(|name| self.residents.take(name));
        let known = taken.as_ref().and_then(Taken::resident);
        let known = known.filter(|known| known.begins(&heard) && !known.talk.is_outdated());
        let (stretch, max_tokens, constraint) = self.plan(said, known, max_tokens, format).await?;
        let goes_on = known.is_some();
        let resident = match taken.and_then(Taken::keep).filter(|_| goes_on) {
            Some(known) => known,
            None => self.begin().await?,
        };
        let seed = sampled.seed.unwrap_or_else(|| rand::rng().next_u64());
        let envelope = Envelope {
            id: format!("chatcmpl-{:016x}{:016x}", rand::rng().next_u64(), rand::rng().next_u64()),
            created: now(),
            model,
            fingerprint: self.talks.fingerprint(),
            counts_usage: request.include_usage,
        };
        Ok(Prepared {
            resident,
            said: heard,
            stretch,
            // A reply that is cut at a text leaves the state behind more than was told.
            stays: stop.is_empty() && session_id.is_some(),
            sampling: Sampling {
                temperature: sampled.temperature,
                top_p: sampled.top_p,
                top_k: sampled.top_k,
                min_p: sampled.min_p,
                max_tokens,
                seed,
            },
            constraint,
            stops: stop.into(),
            logprobs: request.logprobs,
            ids: request.return_token_ids,
            session_id,
            envelope,
        })
    }

    /// What is shown behind what a session holds, the most tokens of the reply, and what it is led to.
    async fn plan(
        &self,
        said: Vec<Said>,
        known: Option<&Resident>,
        max_tokens: Option<u32>,
        format: Format,
    ) -> Checked<(Stretch, u32, Option<Arc<Constraint>>)> {
        let (from, before) = known.map_or((0, 0), |known| (known.held.len(), known.ids.len()));
        let stretch = self.lay(said, from).await?;
        let max_tokens = self.reply_tokens(before + stretch.ids.len(), max_tokens)?;
        let constraint = self.constraint(format, max_tokens).await?;
        Ok((stretch, max_tokens, constraint))
    }

    /// Whether this is the model.
    pub fn check_model(&self, name: &str) -> Checked<()> {
        if name == self.config.model {
            return Ok(());
        }
        let name: String = name.chars().take(80).collect();
        let message = format!("the model {name:?} does not exist here; this is {:?}", self.config.model);
        Err(ApiError {
            param: Some("model".into()),
            ..ApiError::of(404, "invalid_request_error", "model_not_found", message)
        })
    }

    async fn begin(&self) -> Checked<Resident> {
        let place = self.residents.place().ok_or_else(|| {
            ApiError::of(
                429,
                "rate_limit_error",
                "no_place",
                "all places for sessions are at work; try again",
            )
        })?;
        let talk = self.talks.open().await.map_err(|fault| failed(&fault))?;
        Ok(Resident { talk, _place: place, held: Vec::new(), ids: Vec::new() })
    }

    /// Shows what was said from a message on, pictures cut into tiles.
    async fn lay(&self, said: Vec<Said>, from: usize) -> Checked<Stretch> {
        let (talks, said) = (self.talks.clone(), Arc::new(said));
        let messages = said.clone();
        aside(move || pictures_fit(&talks, &messages, from)).await?;
        let mut pictures: Vec<Arc<Picture>> = Vec::new();
        for (index, encoded) in pictures_of(&said, from) {
            let picture = self.talks.picture(encoded.clone()).await;
            pictures.push(picture.map_err(|why| unreadable(index, &why))?);
        }
        let talks = self.talks.clone();
        aside(move || Layout::new(&talks, pictures).lay(&said, from)).await
    }

    /// Tokens that the reply may have: as many as asked for, or as many as fit.
    fn reply_tokens(&self, prompt: usize, asked: Option<u32>) -> Checked<u32> {
        let most = self.talks.context_tokens_max() as usize;
        // The stop id behind a reply that is cut.
        let left = most.saturating_sub(prompt + 1);
        let wanted = asked.map_or(1, |asked| asked as usize);
        if left < wanted {
            let message = format!(
                "the messages take {prompt} tokens and the reply {wanted} at least; together they must be below {most}"
            );
            return Err(too_long(message));
        }
        Ok(asked.unwrap_or(self.config.limits.max_tokens.min(left as u32)))
    }

    async fn constraint(&self, format: Format, max_tokens: u32) -> Checked<Option<Arc<Constraint>>> {
        const PARAM: &str = "response_format.json_schema.schema";
        let (source, schema) = match format {
            Format::Text => return Ok(None),
            Format::JsonObject => (None, Schema::any_object()),
            Format::JsonSchema(source) => {
                let checking = move || {
                    let schema = Schema::check(&source)
                        .map_err(|why| ApiError::unsupported(PARAM, why.to_string()))?;
                    Ok((Some(source.to_string()), schema))
                };
                aside(checking).await?
            }
        };
        let made = self.talks.constraint(source, schema, max_tokens).await;
        made.map(Some).map_err(|why| match why {
            ConstraintError::TooFew { max_tokens, least } => ApiError::invalid(
                "max_tokens",
                format!("max_tokens is {max_tokens}; a reply of this form takes at least {least} tokens"),
            ),
            ConstraintError::Ambiguous => ApiError::unsupported(
                PARAM,
                "two ways of this schema begin alike and cannot be told apart; give them different types",
            ),
            ConstraintError::Broken { why } => broken(&why),
            other => ApiError::unsupported(PARAM, other.to_string()),
        })
    }

    /// Has the reply drawn, telling its parts, and keeps the session for the next request. Dropping this ends it in the engine.
    pub async fn reply(&self, prepared: Prepared, mut parts: Parts) -> Checked<Told> {
        let ranks = prepared.ranks();
        let Prepared { mut resident, said, stretch, stays, sampling, constraint, stops, .. } = prepared;
        let tokenizer = self.talks.template().tokenizer();
        let mut unfolding = Unfolding::new(tokenizer, &stops, prepared.logprobs.is_some(), prepared.ids);
        // Room for every token: the engine waits for nobody.
        let (told, mut seen) = mpsc::channel(sampling.max_tokens as usize + 1);
        let watch = Watch::new(told, stops.clone(), tokenizer.clone()).ranking(ranks);
        let shown = stretch.ids.clone();
        let mut whole = Delta {
            text: String::new(),
            logprobs: prepared.logprobs.map(|_| Vec::new()),
            token_ids: prepared.ids.then(Vec::new),
        };
        let reply = {
            let wanted = Wanted { stretch, stays, sampling, constraint, watch };
            let mut reply = std::pin::pin!(resident.talk.reply(wanted));
            loop {
                tokio::select! {
                    biased;
                    Some(token) = seen.recv() => {
                        if let Some(delta) = unfolding.push(token) {
                            parts.tell(&mut whole, delta).await?;
                        }
                    }
                    reply = &mut reply => break reply.map_err(|fault| failed(&fault))?,
                }
            }
        };
        while let Ok(token) = seen.try_recv() {
            if let Some(delta) = unfolding.push(token) {
                parts.tell(&mut whole, delta).await?;
            }
        }
        parts.tell(&mut whole, unfolding.finish()).await?;
        let prompt = [&resident.ids[..], &shown].concat();
        let usage = usage(&prompt, &reply);
        let told = Told {
            finish: finish(reply.finish_reason),
            usage,
            prompt_token_ids: prepared.ids.then(|| prompt.clone()),
            reply: whole,
        };
        if let Some(name) = prepared.session_id {
            if stays {
                let words = digest_of(Role::Assistant, [told.reply.text.as_bytes()].into_iter());
                let ids = Some(digest_of_ids(&reply.columns.ids, self.talks.template().stop()));
                resident.ids = [prompt, reply.columns.ids].concat();
                let new = said.into_iter().skip(resident.held.len());
                resident.held.extend(new.map(|message| Held { message, is_drawn: false }));
                resident.held.push(Held { message: Heard { words, ids }, is_drawn: true });
            }
            if !resident.held.is_empty() {
                self.residents.keep(name, resident);
            }
        }
        Ok(told)
    }
}

impl Prepared {
    /// How many of the likeliest tokens are ranked. A draw at temperature 0 or 1 tells its own log-prob, that of softmax(logits).
    fn ranks(&self) -> Option<usize> {
        let needs = |count: &u32| *count > 0 || ![0.0, 1.0].contains(&self.sampling.temperature);
        self.logprobs.filter(needs).map(|count| count as usize)
    }

    /// Ids of the whole prompt.
    pub fn prompt_ids(&self) -> Vec<u32> {
        [&self.resident.ids[..], &self.stretch.ids].concat()
    }
}

impl Parts {
    async fn tell(&mut self, whole: &mut Delta, delta: Delta) -> Checked<()> {
        whole.text.push_str(&delta.text);
        match self {
            Self::Gathered => {
                whole
                    .logprobs
                    .iter_mut()
                    .for_each(|all| all.extend(delta.logprobs.iter().flatten().cloned()));
                whole.token_ids.iter_mut().for_each(|all| all.extend(delta.token_ids.iter().flatten()));
                Ok(())
            }
            Self::Streamed(_) if delta.is_empty() => Ok(()),
            Self::Streamed(reader) => reader.send(delta).await.map_err(|_| {
                ApiError::of(499, "invalid_request_error", "client_gone", "the client has gone")
            }),
        }
    }
}

/// Lays messages behind one another.
struct Layout<'a> {
    talks: &'a Talks,
    pictures: std::vec::IntoIter<Arc<Picture>>,
    stretch: Stretch,
}

impl<'a> Layout<'a> {
    fn new(talks: &'a Talks, pictures: Vec<Arc<Picture>>) -> Self {
        Self { talks, pictures: pictures.into_iter(), stretch: Stretch::default() }
    }

    /// Users' messages on end are one turn: the template has no form for two.
    fn lay(mut self, said: &[Said], from: usize) -> Checked<Stretch> {
        let mut instructions = (from == 0).then(String::new);
        let mut turn: Vec<&Part> = Vec::new();
        for (index, message) in said.iter().enumerate().skip(from) {
            match message.role {
                Role::System => instructions = Some(words(message)),
                Role::User => turn.extend(&message.parts),
                Role::Assistant => {
                    self.turn(instructions.take().as_deref(), &std::mem::take(&mut turn));
                    self.reply(index, message)?;
                }
            }
        }
        self.turn(instructions.as_deref(), &turn);
        Ok(self.stretch)
    }

    fn turn(&mut self, instructions: Option<&str>, parts: &[&Part]) {
        let shown: Vec<(&Part, Option<Arc<Picture>>)> =
            parts.iter().map(|part| (*part, image(part).and_then(|_| self.pictures.next()))).collect();
        let content: Vec<Content<'_>> = shown
            .iter()
            .map(|(part, picture)| match (part, picture) {
                (Part::Text(text), _) => Content::Text(text),
                (Part::Image(_), picture) => {
                    Content::Image { rows: picture.as_ref().map_or(0, |picture| picture.rows() as usize) }
                }
            })
            .collect();
        let template = self.talks.template();
        let Laid { ids, images } = match instructions {
            Some(instructions) => template.first_words(instructions, &content),
            None => template.later_words(&content),
        };
        let start = self.stretch.ids.len() as u32;
        let pictures = shown.into_iter().filter_map(|(_, picture)| picture);
        let placed = images.into_iter().zip(pictures).map(|(at, picture)| Placed { at: start + at, picture });
        self.stretch.pictures.extend(placed);
        self.stretch.ids.extend(ids);
    }

    /// A reply out of the messages, and the stop id that ends it. Its ids are taken as they were told, or else made of its text.
    fn reply(&mut self, index: usize, message: &Said) -> Checked<()> {
        let template = self.talks.template();
        let stop = template.stop();
        let ids = match &message.token_ids {
            None => template.tokenizer().encode(&words(message)),
            Some(ids) => {
                let wrong =
                    |why: &str| ApiError::invalid(format!("messages[{index}].token_ids"), why.to_owned());
                if let Some(stranger) = ids.iter().find(|id| !self.talks.knows(**id)) {
                    return Err(wrong(&format!("token id {stranger} is none of this model's")));
                }
                // A reply ends with its first stop id. Other marks can have been drawn.
                if ids.strip_suffix(&[stop]).unwrap_or(ids).contains(&stop) {
                    return Err(wrong(&format!("token id {stop} ends a reply; it may only be the last")));
                }
                if !template.tokenizer().decode(ids).starts_with(&words(message)) {
                    return Err(wrong("these ids are not those of the content beside them"));
                }
                ids.clone()
            }
        };
        let is_ended = ids.last() == Some(&stop);
        self.stretch.ids.extend(ids);
        if !is_ended {
            self.stretch.ids.push(stop);
        }
        Ok(())
    }
}

/// Does what takes milliseconds on a thread that may take its time.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Checked<T> + Send + 'static) -> Checked<T> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|why| Err(broken(&why.to_string())))
}

/// Pictures of the messages from one on, with the message's index.
fn pictures_of(said: &[Said], from: usize) -> impl Iterator<Item = (usize, &Bytes)> {
    let messages = said.iter().enumerate().skip(from);
    messages.flat_map(|(index, said)| said.parts.iter().filter_map(image).map(move |image| (index, image)))
}

/// Refuses more pictures than can be shown before one is decoded: pixels are far more than the file that holds them.
fn pictures_fit(talks: &Talks, said: &[Said], from: usize) -> Checked<()> {
    let (mut rows, most) = (0u64, talks.context_tokens_max());
    for (index, encoded) in pictures_of(said, from) {
        rows += u64::from(talks.picture_rows(encoded).map_err(|why| unreadable(index, &why))?);
        if rows >= u64::from(most) {
            let message =
                format!("the pictures up to messages[{index}] take {rows} tokens; all must be below {most}");
            return Err(too_long(message));
        }
    }
    Ok(())
}

fn unreadable(index: usize, why: &str) -> ApiError {
    ApiError::invalid(format!("messages[{index}].content"), format!("a picture cannot be read: {why}"))
}

fn broken(why: &str) -> ApiError {
    ApiError::of(500, "server_error", "failed", why)
}

fn image(part: &Part) -> Option<&Bytes> {
    if let Part::Image(encoded) = part { Some(encoded) } else { None }
}

/// The texts of a message without pictures.
fn words(message: &Said) -> String {
    let text = |part: &Part| if let Part::Text(text) = part { text.clone() } else { String::new() };
    message.parts.iter().map(text).collect()
}

fn heard(message: &Said, stop: u32) -> Heard {
    let ids = message.token_ids.as_deref().map(|ids| digest_of_ids(ids, stop));
    Heard { words: digest(message), ids }
}

/// Of ids without the stop id at their end: a reply is the same with it and without.
fn digest_of_ids(ids: &[u32], stop: u32) -> Digest {
    let ids = ids.strip_suffix(&[stop]).unwrap_or(ids);
    let mut hash = Sha256::new();
    ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    hash.finalize().into()
}

fn digest(message: &Said) -> Digest {
    match message.role {
        Role::Assistant => digest_of(Role::Assistant, [words(message).as_bytes()].into_iter()),
        role => {
            let bytes = |part: &'_ Part| -> Vec<u8> {
                match part {
                    Part::Text(text) => text.as_bytes().to_vec(),
                    Part::Image(encoded) => [b"\0image\0", &Sha256::digest(encoded)[..]].concat(),
                }
            };
            let parts: Vec<Vec<u8>> = message.parts.iter().map(bytes).collect();
            digest_of(role, parts.iter().map(Vec::as_slice))
        }
    }
}

/// Each part with its length before it, so that no two lists of parts are the same bytes.
fn digest_of<'a>(role: Role, parts: impl Iterator<Item = &'a [u8]>) -> Digest {
    let mut hash = Sha256::new();
    hash.update([role as u8]);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn usage(prompt: &[u32], reply: &Reply) -> Usage {
    let columns = &reply.columns;
    let drawn = columns.mask.iter().zip(&columns.forced).filter(|(drawn, forced)| **drawn || **forced);
    Usage {
        prompt_tokens: prompt.len() as u32,
        cached_tokens: reply.engine.reused_tokens,
        prefilled_tokens: reply.engine.prefill_tokens,
        completion_tokens: drawn.count() as u32,
    }
}

fn finish(reason: FinishReason) -> Finish {
    match reason {
        FinishReason::Stop => Finish::Stop,
        // A text of a schema that was closed for want of room is cut, too.
        _ => Finish::Length,
    }
}

fn too_long(message: String) -> ApiError {
    let error = ApiError::of(400, "invalid_request_error", "context_length_exceeded", message);
    ApiError { param: Some("messages".into()), ..error }
}

fn failed(fault: &Fault) -> ApiError {
    let message = fault.to_string();
    match fault {
        Fault::TooLong { .. } => {
            ApiError::of(400, "invalid_request_error", "context_length_exceeded", message)
        }
        Fault::Full { .. } => ApiError::of(503, "server_error", "no_place", message),
        Fault::Device(_) | Fault::Gone => ApiError::of(503, "server_error", "engine_gone", message),
        Fault::NotFinite { .. } | Fault::Refused(_) => ApiError::of(500, "server_error", "failed", message),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

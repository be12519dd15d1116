//! The requests of all routes: read from a body, then prepared.

use furrow_openai::server::{
    AnswerForm, ApiError, ChatLimits, ChatRequest, CompletionRequest, GenerationOptions, ResponsesRequest,
};

use super::chats::{ChatService, PreparedChat};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRoute {
    Chat,
    Completions,
    Responses,
}

#[derive(Debug)]
pub(super) enum ReadRequest {
    Chat(ChatRequest),
    Completion(CompletionRequest),
    Response(ResponsesRequest),
}

impl ReadRequest {
    pub(super) fn read(route: RequestRoute, body: &[u8], limits: &ChatLimits) -> Result<Self, ApiError> {
        match route {
            RequestRoute::Chat => ChatRequest::read(body, limits).map(Self::Chat),
            RequestRoute::Completions => CompletionRequest::read(body, limits).map(Self::Completion),
            RequestRoute::Responses => ResponsesRequest::read(body, limits).map(Self::Response),
        }
    }

    pub(super) fn options(&self) -> &GenerationOptions {
        match self {
            Self::Chat(ChatRequest { options, .. })
            | Self::Completion(CompletionRequest { options, .. })
            | Self::Response(ResponsesRequest { chat: ChatRequest { options, .. }, .. }) => options,
        }
    }

    /// How many replies it asks for.
    pub(super) fn replies(&self) -> u32 {
        let prompts = match self {
            Self::Chat(_) | Self::Response(_) => 1,
            Self::Completion(CompletionRequest { prompts, .. }) => prompts.len() as u32,
        };
        self.options().choices * prompts
    }

    /// Finds every error before the first part of an answer is sent.
    pub(super) async fn prepare(self, chats: &ChatService) -> Result<PreparedChat, ApiError> {
        match self {
            Self::Chat(request) => chats.prepare_chat(request, AnswerForm::Chat).await,
            Self::Completion(request) => chats.prepare_completion(request).await,
            Self::Response(ResponsesRequest { chat, repeated }) => {
                let form = AnswerForm::Response { sampling: chat.options.sampling, repeated };
                chats.prepare_chat(chat, form).await
            }
        }
    }
}

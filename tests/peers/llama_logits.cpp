// The logits that llama.cpp computes behind a prompt of token ids: how `furrow-bench llama` sees that its peer computes the same model.
//
//     llama-logits MODEL.gguf THREADS ID...       prints {"logits": [...]} of the last token, a value an entry of the vocabulary

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static int refuse(const char * why) {
    std::fprintf(stderr, "llama-logits: %s\n", why);
    return 1;
}

static void print(const float * logits, int count) {
    for (int id = 0; id < count; id++) {
        std::printf("%s%.9g", id == 0 ? "{\"logits\": [" : ", ", logits[id]);
    }
    std::printf("]}\n");
}

int main(int argc, char ** argv) {
    if (argc < 4) {
        return refuse("usage: llama-logits MODEL.gguf THREADS ID...");
    }
    std::vector<llama_token> prompt;
    for (int index = 3; index < argc; index++) {
        prompt.push_back(std::atoi(argv[index]));
    }

    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) {
        return refuse("the model does not load");
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = prompt.size();
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    // Its defaults round keys and values to float16: what is compared is the model.
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        return refuse("no context of this length");
    }
    if (llama_decode(context, llama_batch_get_one(prompt.data(), prompt.size())) != 0) {
        return refuse("the prompt does not run");
    }
    print(llama_get_logits_ith(context, -1), llama_vocab_n_tokens(llama_model_get_vocab(model)));
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
}

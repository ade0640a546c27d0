#include "core/options.h"

#include <initializer_list>

namespace hillstar {
namespace {

constexpr uint32_t Bits(std::initializer_list<Command> commands) {
  uint32_t bits = 0;
  for (Command c : commands) bits |= uint32_t(c);
  return bits;
}

constexpr uint32_t kEveryCommand = 1023;
constexpr uint32_t kTalking = Bits({Command::kChat, Command::kRun});
// That answer, and may be asked to draw otherwise than the model's files say.
constexpr uint32_t kAnswering = Bits({Command::kChat, Command::kRun, Command::kServe});
constexpr uint32_t kServing = Bits({Command::kServe});
constexpr uint32_t kRunning = Bits({Command::kChat, Command::kRun, Command::kScore, Command::kEval,
                                    Command::kBench, Command::kServe});
constexpr uint32_t kLoading = kRunning | uint32_t(Command::kInspect);
constexpr uint32_t kMaking = Bits({Command::kConvert, Command::kSynth});
constexpr uint32_t kReporting =
    Bits({Command::kRun, Command::kScore, Command::kEval, Command::kBench, Command::kInspect});

constexpr double kMaxContext = 1 << 20;
constexpr double kMaxCount = 1e9;
constexpr double kMaxSeed = 9007199254740992.0;  // 2^53: every seed is a whole double

constexpr OptionSpec kOptions[] = {
    {"help", 'h', &Options::help, "", "", 0, 0, "", kEveryCommand, nullptr,
     "Prints the command's help and ends."},
    {"config", 0, &Options::config, "FILE", "", 0, 0, "", kEveryCommand,
     "~/.config/hillstar/config where it exists, `~` being the user's home in the password "
     "database",
     "Reads defaults from FILE: lines of the form `name = value` with the options' long names, "
     "'#' starts a comment. The command line wins over the file. A name that does not exist is "
     "an error; one that the command does not use is left out, so that one file serves all "
     "commands. No environment variable counts: neither HOME nor XDG_CONFIG_HOME moves the file."},
    {"log-level", 0, &Options::log_level, "LEVEL", "", 0, 0, "error warn info debug", kEveryCommand,
     nullptr,
     "How much is told on standard error: `info` says what is loaded, how long that took and how "
     "much memory it will take, `debug` a little more."},

    {"model", 'm', &Options::model, "FOLDER", "", 0, 0, "", kRunning, "the built-in model",
     "The model's folder: a Hillstar container, a Hugging Face checkpoint or a colibri "
     "container. A checkpoint is quantised in memory while it loads (see --weights)."},
    {"threads", 't', &Options::threads, "N", "threads", 0, 1024, "", kRunning | kMaking,
     "0: one for each physical core that the process may use",
     "Threads that compute. The results do not depend on it, bit for bit."},
    {"simd", 0, &Options::simd, "LEVEL", "", 0, 0, "auto avx512 avx2 generic reference", kRunning,
     nullptr,
     "Which kernels compute on a CPU: `auto` takes the fastest that the processor has, `reference` "
     "the plain loops that define the arithmetic. All give the same bits. A level that is named "
     "means that the CPU computes, unless --device says otherwise."},
    {"device", 0, &Options::device, "DEVICE", "", 0, 0, "", kLoading, nullptr,
     "What computes: `cpu`, `cuda` (the first NVIDIA GPU that can) or `cuda:N` (the one of that "
     "number); `auto` is the first GPU that can compute and has the memory for the model, and the "
     "CPU where there is none. A GPU needs libhillstar_cuda.so beside the program. All devices "
     "give the same bits. `inspect` looks for no GPU: it tells of the CPU unless a GPU is named."},
    {"eager", 0, &Options::eager, "", "", 0, 0, "", kRunning, nullptr,
     "On a GPU: one operation after another instead of a captured graph; the same bits; for "
     "debugging."},
    {"context", 'c', &Options::context, "N", "tokens", 0, kMaxContext, "", kLoading,
     "0: the model's limit, at most 16384",
     "The longest prompt and answer together. Memory for it is taken as it fills; `inspect` tells "
     "beforehand how much that is."},
    {"prefill-chunk", 0, &Options::prefill_chunk, "N", "tokens", 1, 8192, "", kLoading, nullptr,
     "How many tokens of a prompt are computed in one step. A larger chunk is faster and needs "
     "more workspace; the results do not depend on it."},
    {"attention", 0, &Options::attention, "MODE", "", 0, 0, "auto dense sparse full-list", kLoading,
     nullptr,
     "Which keys a token attends to: `auto` those that the indexer selects, where the model has "
     "one, `dense` all. `sparse` and `full-list` are for tests: `sparse` is `auto` by a list of "
     "keys even where that holds all of them, `full-list` is `dense` by such a list. Where "
     "everything is selected all give the same bits."},
    {"kv-memory", 0, &Options::kv_memory, "MB", "MB", 0, 1e9, "", kLoading,
     "0: room for one context",
     "Memory for the KV pages of all sequences, in units of 1,000,000 bytes. What finished "
     "sequences leave stays for others that begin alike until the room is needed."},
    {"weights", 'w', &Options::weights, "FORMAT", "", 0, 0, "w15 w8 w4 pocket", kLoading, nullptr,
     "How the weights of an unconverted checkpoint are held: `w15` is nearly without loss, "
     "`pocket` means routed experts in w4 and the rest in w8. A Hillstar container brings its "
     "own formats; the option is refused there."},
    {"kv-format", 0, &Options::kv_format, "FORMAT", "", 0, 0, "q15 q8 fp8", kLoading, nullptr,
     "How the keys and values of a sequence's tokens are held. `q15` takes 1168 bytes a token and "
     "layer in a model of GLM-5.2's sizes and is as good as float32; `q8` takes 656 and `fp8` 592, "
     "for longer contexts in the same memory. `q8` loses less than `fp8`, unless a few "
     "channels are much larger than the rest. Both also halve what the indexer keeps."},

    {"thinking", 0, &Options::thinking, "WHEN", "", 0, 0, "auto on off", kAnswering, nullptr,
     "Whether the model is asked to reason before it answers. `auto` is on, as the published "
     "chat template has it, but off for the built-in model, which has learnt to reason about "
     "sums only."},
    {"reasoning-effort", 0, &Options::reasoning_effort, "LEVEL", "", 0, 0, "auto high max",
     kAnswering, nullptr,
     "How long the model is asked to reason, where its template knows this. `auto` is the "
     "template's own choice, and `high` for the built-in model, which has seen no other."},
    {"show-thinking", 0, &Options::show_thinking, "", "", 0, 0, "", kTalking, nullptr,
     "Shows the reasoning as well, dimmed on a terminal. In `chat`, /think show does the same."},
    {"system", 's', &Options::system, "TEXT", "", 0, 0, "", kTalking, "none",
     "The system message at the start of the conversation; in a saved one it replaces what "
     "is there and keeps the rest."},
    {"stats", 0, &Options::stats, "", "", 0, 0, "", kTalking, nullptr,
     "Prints the number of tokens and the speed after each answer, on standard error."},
    {"session", 0, &Options::session, "NAME", "", 0, 0, "", Bits({Command::kChat}), "none",
     "Goes on with the conversation NAME, or begins it: messages, tokens and KV rows are kept in "
     "~/.local/state/hillstar/sessions/NAME.session, written after each answer, and a restored "
     "conversation computes nothing again, as long as model, --kv-format and the kind of attention "
     "are the same; else its tokens are computed anew with the next answer. A NAME with a slash is "
     "the file itself. Removing the file deletes the conversation."},
    {"import-session", 0, &Options::import_session, "FILE", "", 0, 0, "", Bits({Command::kChat}),
     "none",
     "Begins with a conversation that colibri has saved (.coli_kv, versions 1 and 2) with the same "
     "model: its tokens and its rows, requantised to this KV format. With --session, "
     "which must be new, the conversation is saved there; later starts take --session alone."},
    {"tools", 0, &Options::tools, "FILE", "", 0, 0, "", Bits({Command::kRun}), "none",
     "Functions that the model may call: a JSON array of objects with `name`, `description` and "
     "`parameters` (a JSON schema of the arguments), or of such as OpenAI's interface takes, with "
     "`type` and `function`. Calls are printed behind the answer, one a line, as "
     "`name({\"argument\":1})`; nothing is called. With --json they are `tool_calls`, and "
     "`finish_reason` says `tool_calls`."},
    {"raw", 0, &Options::raw, "", "", 0, 0, "", Bits({Command::kRun}), nullptr,
     "Continues PROMPT as it stands instead of answering it. The chat template is left out: "
     "no <|user|> before PROMPT, no <|assistant|> and <think> after it, no system message. "
     "Of what the template writes only `[gMASK]<sop>` stays, with which every text of the "
     "model begins: it is put in front where PROMPT does not begin with it. Text such as "
     "<|user|> in PROMPT becomes the control token."},
    {"ids", 0, &Options::ids, "", "", 0, 0, "", Bits({Command::kRun}), nullptr,
     "Prints the ids of the prompt's and the answer's tokens instead of text."},
    {"json", 0, &Options::json, "", "", 0, 0, "", kReporting, nullptr,
     "Prints one JSON object instead of text."},

    {"max-tokens", 'n', &Options::max_tokens, "N", "tokens", 1, kMaxCount, "",
     kAnswering | Bits({Command::kEval}), nullptr,
     "The longest answer. Where the context has less room, the answer ends there."},
    {"temperature", 0, &Options::temperature, "X", "", 0, 100, "", kAnswering, "the model's",
     "Divides the logits before a token is drawn: lower is more predictable. Below 0.0001 the "
     "most likely token is taken; ties go to the lower id."},
    {"top-p", 0, &Options::top_p, "X", "", 0, 1, "", kAnswering, "the model's",
     "Draws among the most likely tokens that together reach this probability; at least one "
     "stays."},
    {"top-k", 0, &Options::top_k, "N", "tokens", 0, kMaxCount, "", kAnswering, "0: all",
     "Draws among this many most likely tokens. Applied before --top-p and --min-p."},
    {"min-p", 0, &Options::min_p, "X", "", 0, 1, "", kAnswering, nullptr,
     "Leaves out tokens less likely than this share of the most likely one."},
    {"repetition-penalty", 0, &Options::repetition_penalty, "X", "", 0.01, 100, "", kAnswering,
     nullptr,
     "Divides the positive and multiplies the negative logits of every token that the prompt or "
     "the answer holds already. 1 changes nothing."},
    {"presence-penalty", 0, &Options::presence_penalty, "X", "", -2, 2, "", kAnswering, nullptr,
     "Subtracted from the logits of every token that the answer holds already."},
    {"frequency-penalty", 0, &Options::frequency_penalty, "X", "", -2, 2, "", kAnswering, nullptr,
     "Subtracted from a token's logit once for each time that the answer holds it already."},
    {"seed", 0, &Options::seed, "N", "", 0, kMaxSeed, "",
     kAnswering | Bits({Command::kSynth, Command::kScore}),
     "a new one for each answer; 1 for synth and score",
     "Makes a drawn answer repeatable: the random number for a token depends on the seed and the "
     "token's position only. For `synth`, the seed of the weights; for `score --replay`, of the "
     "order of the rows."},
    {"stop", 0, &Options::stop, "TEXT", "", 0, 0, "", kTalking, "none",
     "Ends the answer before TEXT, which cannot be empty. May be given several times; the "
     "model's own end tokens always end it."},

    {"host", 0, &Options::host, "ADDRESS", "", 0, 0, "", kServing, nullptr,
     "The address to listen on. The default takes connections of this machine only; 0.0.0.0 takes "
     "those of every network, and then --api-key should be set."},
    {"port", 'p', &Options::port, "N", "", 0, 65535, "", kServing, nullptr,
     "The port to listen on; 0 takes any free one, which the log names."},
    {"api-key", 0, &Options::api_key, "KEY", "", 0, 0, "", kServing, "none",
     "A key that requests have to bring, as `Authorization: Bearer KEY` or `x-api-key: KEY`. May "
     "be "
     "given several times. Other users of the machine see the command line: --api-key-file does "
     "not "
     "show it."},
    {"api-key-file", 0, &Options::api_key_file, "FILE", "", 0, 0, "", kServing, "none",
     "A file with one key a line; empty lines and lines that begin with '#' do not count."},
    {"allowed-host", 0, &Options::allowed_host, "NAME", "", 0, 0, "", kServing,
     "this machine's own names, and the address listened on",
     "A name by which clients may call the server (the Host header), besides localhost and the "
     "address listened on. `*` allows all. Other names are refused, so that no web page reaches "
     "the "
     "server through a name of its own. May be given several times."},
    {"cors-origin", 0, &Options::cors_origin, "ORIGIN", "", 0, 0, "", kServing, "none",
     "An origin such as https://example.org whose web pages may use the server from a browser; `*` "
     "allows all. May be given several times."},
    {"served-name", 0, &Options::served_name, "NAME", "", 0, 0, "", kServing,
     "the name of the model's folder",
     "The model's name in answers and in /v1/models. Requests may name any model: there is one."},
    {"max-sequences", 0, &Options::max_sequences, "N", "sequences", 1, 512, "", kServing, nullptr,
     "Answers that are computed at once; more wait."},
    {"max-queue", 0, &Options::max_queue, "N", "answers", 0, 1e6, "", kServing, nullptr,
     "Answers that may wait; a request beyond that is told to come back (429)."},
    {"max-connections", 0, &Options::max_connections, "N", "connections", 1, 1e5, "", kServing,
     nullptr, "Open connections; more are closed at once (503)."},
    {"max-body", 0, &Options::max_body, "MB", "MB", 1, 1024, "", kServing, nullptr,
     "The largest request, in units of 1,000,000 bytes."},
    {"mixed-prompt-tokens", 0, &Options::mixed_prompt_tokens, "N", "tokens", 1, 8192, "", kServing,
     nullptr,
     "Tokens of prompts in a step with running answers. More brings the first token sooner and "
     "makes running answers slower while prompts arrive; the answers do not depend on it."},
    {"park-folder", 0, &Options::park_folder, "FOLDER", "", 0, 0, "", kServing, "none",
     "Where the pages of answers go that are paused for lack of memory; a fast local disk. Without "
     "one their rows are computed again."},
    {"grace", 0, &Options::grace, "SECONDS", "s", 0, 3600, "", kServing, nullptr,
     "How long running answers may go on after Ctrl-C or SIGTERM; what is left then ends with an "
     "error. A second signal ends them at once."},

    {"oracle", 0, &Options::oracle, "FILE", "", 0, 0, "", Bits({Command::kScore}), "none",
     "Reference outputs: JSON with `cases`, each with prompt_ids, greedy_ids, argmax, margin and "
     "perhaps mtp_argmax."},
    {"hidden", 0, &Options::hidden, "FILE", "", 0, 0, "", Bits({Command::kScore}), "none",
     "A safetensors file with `ids` [tokens] and `hidden` [layers + 1 or + 2, tokens, hidden "
     "size]: the residual stream before each layer, after the last one (where there are layers + "
     "2) and after the final norm. A table of relative L2 differences is printed. Tokens whose "
     "router is undecided between two experts are run again with the other one; the column `ties "
     "decided` gives the differences with the choice that is nearer to the file's, and a line each "
     "names them."},
    {"tolerance", 0, &Options::tolerance, "X", "logits", 0, 1e6, "", Bits({Command::kScore}),
     "derived from the logits, see docs/numerics.md",
     "Where the reference's first and second logit are closer than this, the other token may "
     "come out first; each such position is listed."},
    {"replay", 0, &Options::replay, "FILE", "", 0, 0, "", Bits({Command::kScore}), "none",
     "Rows as `eval` reads them. They are joined to one long conversation in an order drawn from "
     "--seed, and again in another order where they do not suffice; rows longer than an eighth of "
     "the text are left out, as long as there are shorter ones. The text is decoded token by "
     "token; the logits of every step are compared with those of a prefill of the same text, bit "
     "for bit, and with --reference. The table gives each quarter of the text, so that drift "
     "shows."},
    {"replay-tokens", 0, &Options::replay_tokens, "N", "tokens", 1, kMaxContext, "",
     Bits({Command::kScore}), nullptr, "The length of the text of --replay."},
    {"reference", 0, &Options::reference, "WHICH", "", 0, 0, "float none",
     Bits({Command::kScore, Command::kEval}), "float for score --replay, none for eval",
     "`float` computes the model in plain float32 on the same weights, with four bytes of memory "
     "for each of them: score --replay compares with that besides the prefill, eval finds "
     "likelihoods and exact answers with it in the engine's place, along the given answers. `none` "
     "leaves it out, for models that are too large."},
    {"skills", 0, &Options::skills, "LIST", "", 0, 0, "", Bits({Command::kEval}), "all",
     "Only rows of these skills, separated by commas."},
    {"limit", 0, &Options::limit, "N", "rows", 0, kMaxCount, "", Bits({Command::kEval}), "0: all",
     "Only the first N rows of each skill."},
    {"prompt-tokens", 0, &Options::prompt_tokens, "LIST", "tokens", 0, 0, "",
     Bits({Command::kBench}), nullptr, "Prompt lengths whose prefill is measured."},
    {"decode-tokens", 0, &Options::decode_tokens, "N", "tokens", 1, 1e6, "",
     Bits({Command::kBench}), nullptr, "How many tokens are decoded in one measurement."},
    {"context-tokens", 0, &Options::context_tokens, "LIST", "tokens", 0, 0, "",
     Bits({Command::kBench}), nullptr,
     "How many tokens lie before the decoded ones, one measurement each; 0 stands for the "
     "one token that a text needs to begin."},
    {"repeat", 0, &Options::repeat, "N", "", 1, 1000, "", Bits({Command::kBench}), nullptr,
     "How often each measurement is made; the median counts. --mixed-prompt and --shared-prefix "
     "are measured once."},

    {"batch", 0, &Options::batch, "LIST", "sequences", 0, 0, "", Bits({Command::kBench}), "none",
     "Measures decode of so many sequences at once. This option and the next three measure in "
     "place of loading, prefill and decode, and state no bounds."},
    {"mixed-prompt", 0, &Options::mixed_prompt, "N", "tokens", 0, kMaxContext, "",
     Bits({Command::kBench}), "0: not measured",
     "Measures how long the running answers of the largest --batch wait for their tokens before "
     "and while a prompt of N tokens is computed beside them: with 16, 64 (the default of the "
     "scheduler) and 512 of its tokens in a step, or as many as the answers leave room for."},
    {"shared-prefix", 0, &Options::shared_prefix, "N", "tokens", 0, kMaxContext, "",
     Bits({Command::kBench}), "0: not measured",
     "Measures the time to the first token of a prompt that begins with N tokens of another one, "
     "against that of the first."},
    {"synthetic-context", 0, &Options::synthetic_context, "LIST", "tokens", 0, 0, "",
     Bits({Command::kBench}), "none",
     "Measures one decode step behind so many tokens whose rows are random numbers instead of "
     "computed, so that long contexts can be had at once."},
    {"experts", 0, &Options::experts, "FORMAT", "", 0, 0, "w4 w8 w15", kMaking, nullptr,
     "The format of the routed experts."},
    {"dense", 0, &Options::dense, "FORMAT", "", 0, 0, "w4 w8 w15", kMaking, nullptr,
     "The format of all other matrices. Norms and the router are always f32."},
    {"no-mtp", 0, &Options::no_mtp, "", "", 0, 0, "", Bits({Command::kConvert}), nullptr,
     "Leaves the multi-token-prediction layer out."},
    {"with-mtp", 0, &Options::with_mtp, "", "", 0, 0, "", Bits({Command::kSynth}), nullptr,
     "Adds a multi-token-prediction layer."},
    {"geometry", 0, &Options::geometry, "NAME", "", 0, 0, "glm-5.2 pocket", Bits({Command::kSynth}),
     nullptr, "Whose sizes the synthetic model has; `pocket` is the built-in model."},
    {"layers", 0, &Options::layers, "N", "layers", 0, 1000, "", Bits({Command::kSynth}),
     "0: as many as the geometry has", "How many layers the synthetic model has."},
    {"dense-layers", 0, &Options::dense_layers, "N", "layers", -1, 1000, "",
     Bits({Command::kSynth}), "-1: the geometry's, or 1 where --layers is given",
     "How many of the first layers have a dense MLP instead of experts."},
    {"positions", 0, &Options::positions, "N", "tokens", 0, kMaxContext, "",
     Bits({Command::kSynth}), "0: the geometry's", "The longest context of the synthetic model."},
    {"dry-run", 0, &Options::dry_run, "", "", 0, 0, "", kMaking, nullptr,
     "Prints what would be written and how large it would be, and ends."},
    {"verify", 0, &Options::verify, "", "", 0, 0, "", Bits({Command::kInspect}), nullptr,
     "Reads every tensor and expert and compares it with its checksum."},
    {"markdown", 0, &Options::markdown, "", "", 0, 0, "", Bits({Command::kOptions}), nullptr,
     "Prints the page docs/options.md."},
};

constexpr CommandSpec kCommands[] = {
    {Command::kChat, "chat", "", 0, 0, "talk to a model in the terminal",
     "Starts a conversation. Type a message and press Enter; a backslash at the end of a line "
     "continues it on the next. Ctrl-C stops an answer or drops what is typed, Ctrl-D ends the "
     "program, /help lists what else can be typed. On a terminal the lines are kept in "
     "~/.local/state/hillstar/chat_history, `~` being the user's home in the password database.",
     "hillstar chat"},
    {Command::kRun, "run", "PROMPT", 1, 1, "print one answer",
     "Answers PROMPT and writes the answer to standard output as it comes. With - the prompt "
     "is read from standard input. Ctrl-C stops the answer; what came stays printed, and the "
     "exit code is 130.",
     "hillstar run \"What is a river?\""},
    {Command::kServe, "serve", "", 0, 0, "answer over HTTP as OpenAI's and Anthropic's APIs do",
     "Serves /v1/chat/completions, /v1/completions, /v1/messages and a web page; docs/api.md "
     "describes them. Many requests are answered at once, each with the tokens that it would get "
     "alone. Ctrl-C or SIGTERM ends it: no request is taken any more, running answers may end "
     "(--grace). The log goes to standard error, one line a request.",
     "hillstar serve --port 8000"},
    {Command::kScore, "score", "", 0, 0, "compare a model with reference outputs",
     "Runs every case of the reference through the model, teacher-forced, and compares the most "
     "likely token at every position. Ends with one line such as `1590 of 1590 positions equal, 0 "
     "near ties differ` and with exit code 0 only if every position whose margin exceeds the "
     "tolerance is equal, those of the MTP head among them. With --replay, a long text is decoded "
     "token by token; the exit code is 0 only if every step's logits equal the prefill's in all "
     "bits.",
     "hillstar score -m CHECKPOINT --oracle oracle.json"},
    {Command::kEval, "eval", "FILE.jsonl", 1, 1, "measure exact answers and answer likelihood",
     "FILE.jsonl holds one object a line with `skill`, `prompt` and `answer`. Prints, for each "
     "skill and in all, the share of greedy answers that equal the given one up to the first end "
     "token, and the answer's negative log-likelihood in nats a token.",
     "hillstar eval eval.jsonl --limit 10"},
    {Command::kBench, "bench", "", 0, 0, "measure speed",
     "Measures loading, prefill and decode, and in the same run the machine's read bandwidth and "
     "how many products of bytes its cores can do; states which share of these bounds decode and "
     "prefill reach, and the peak memory beside the predicted one.",
     "hillstar bench --batch 1,8,32 --mixed-prompt 2000"},
    {Command::kConvert, "convert", "CHECKPOINT OUT", 2, 2, "write a Hillstar container",
     "Converts a Hugging Face checkpoint (BF16, F16, F32, FP8) or a colibri container. Prints "
     "first what it will write and how large that will be. May be stopped and started again; "
     "finished parts are kept.",
     "hillstar convert GLM-5.2-FP8 glm-5.2-w4"},
    {Command::kSynth, "synth", "OUT", 1, 1, "write a model of true geometry with random weights",
     "Writes a container with the sizes of a published model, fewer layers and random weights: "
     "for measuring speed without its download.",
     "hillstar synth glm-3layers --layers 3"},
    {Command::kInspect, "inspect", "[MODEL]", 0, 1, "describe a model's folder",
     "Prints the sizes and formats of the model in the folder MODEL, or of the built-in one, and "
     "the memory that running it will take. Loads no weights.",
     "hillstar inspect glm-5.2-w4 --context 65536"},
    {Command::kOptions, "options", "", 0, 0, "list every option",
     "Prints every option once, with its meaning, values, default and commands.",
     "hillstar options"},
};

}  // namespace

std::span<const OptionSpec> OptionTable() { return kOptions; }
std::span<const CommandSpec> CommandTable() { return kCommands; }

}  // namespace hillstar

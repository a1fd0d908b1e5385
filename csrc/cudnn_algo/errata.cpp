// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/errata.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <variant>

#include "base/error.h"

namespace torchalgo::cudnn {
namespace {

constexpr const char* kFileVariable = "CUDNN_ERRATA_JSON_FILE";

// Returns the rules for the engines that PyTorch refuses: aten/src/ATen/native/cudnn/Conv_v8.cpp.
// cuDNN's heuristics do not propose the first two engines, but an enumeration finds them.
const std::vector<Erratum>& known_errata() {
  static const std::vector<Erratum> errata = {
      {"pytorch#163539", "ConvFwd", 23, 90800, 91500},
      {"pytorch#171747", "ConvBwdData", 23},
      {"pytorch#188318", "ConvFwd", 5, 92301, 92400, "sm_86"},
      // The cuBLASLt kernel of these engines reads outside its memory. The reports name no
      // operation.
      {.id = "pytorch#191701", .engine = 58, .isa = "sm_120"},
      {.id = "pytorch#191701", .engine = 63, .isa = "sm_120"},
  };
  return errata;
}

// Returns the tags that cuDNN's frontend gives the operations, joined in the order of the graph.
std::string_view operation_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kConv:
      return "ConvFwd";
    case Pattern::kConvBias:
      return "ConvFwd_ADD";
    case Pattern::kConvBiasRelu:
      return "ConvFwd_ADD_RELU_FWD";
    case Pattern::kConvBiasAdd:
      return "ConvFwd_ADD_ADD";
    case Pattern::kConvBiasAddRelu:
      return "ConvFwd_ADD_ADD_RELU_FWD";
    case Pattern::kConvBackwardData:
      return "ConvBwdData";
    case Pattern::kConvBackwardFilter:
      return "ConvBwdFilter";
    case Pattern::kConvRelu:
      return "ConvFwd_RELU_FWD";
    case Pattern::kConvBiasSilu:
      return "ConvFwd_ADD_SWISH_FWD";
    case Pattern::kConvBiasGelu:
      return "ConvFwd_ADD_GELU_FWD";
  }
  return {};
}

// A value of JSON. true, false and null have no value here. Escapes in strings are not decoded.
struct Json {
  std::variant<std::monostate, double, std::string, std::vector<Json>, std::map<std::string, Json>>
      value;
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  Json read_all() {
    Json json = read(0);
    if (next() != '\0') fail();
    return json;
  }

 private:
  static constexpr int kMaxDepth = 16;

  [[noreturn]] static void fail() {
    throw Error(fmt::format(
        "TA5107 {}: expected cuDNN's errata as JSON, such as {{\"version\": 1, \"rules\": "
        "[{{\"rule_id\": \"a\", \"operation\": \"ConvFwd\", \"engine\": 1}}]}}",
        kFileVariable));
  }

  // Returns the next character that is not a space, without removing it, and 0 at the end.
  char next() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front()))) {
      rest_.remove_prefix(1);
    }
    return rest_.empty() ? '\0' : rest_.front();
  }
  void take(char expected) {
    if (next() != expected) fail();
    rest_.remove_prefix(1);
  }
  bool take_if(char wanted) {
    if (next() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  Json read(int depth) {
    if (depth > kMaxDepth) fail();
    switch (next()) {
      case '{':
        return {read_object(depth)};
      case '[':
        return {read_list(depth)};
      case '"':
        return {read_string()};
      default:
        return read_word();
    }
  }

  std::map<std::string, Json> read_object(int depth) {
    std::map<std::string, Json> object;
    take('{');
    if (take_if('}')) return object;
    do {
      if (next() != '"') fail();
      std::string key = read_string();
      take(':');
      object[std::move(key)] = read(depth + 1);
    } while (take_if(','));
    take('}');
    return object;
  }

  std::vector<Json> read_list(int depth) {
    std::vector<Json> list;
    take('[');
    if (take_if(']')) return list;
    do {
      list.push_back(read(depth + 1));
    } while (take_if(','));
    take(']');
    return list;
  }

  std::string read_string() {
    take('"');
    std::string text;
    while (!rest_.empty() && rest_.front() != '"') {
      if (rest_.front() == '\\') rest_.remove_prefix(1);
      if (rest_.empty()) fail();
      text += rest_.front();
      rest_.remove_prefix(1);
    }
    if (rest_.empty()) fail();
    rest_.remove_prefix(1);
    return text;
  }

  Json read_word() {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return {};
    }
    double number = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) fail();
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return {number};
  }

  std::string_view rest_;
};

template <typename T>
const T* find(const std::map<std::string, Json>& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : std::get_if<T>(&found->second.value);
}

Erratum to_erratum(const Json& json) {
  const auto* rule = std::get_if<std::map<std::string, Json>>(&json.value);
  const auto* operation = rule != nullptr ? find<std::string>(*rule, "operation") : nullptr;
  const auto* engine = rule != nullptr ? find<double>(*rule, "engine") : nullptr;
  TORCHALGO_CHECK(operation != nullptr && engine != nullptr,
                  "TA5107 {}: a rule lacks \"operation\" (a text) or \"engine\" (a number): add it",
                  kFileVariable);
  Erratum erratum;
  if (const auto* id = find<std::string>(*rule, "rule_id")) erratum.id = *id;
  erratum.operation = *operation;
  erratum.engine = static_cast<std::int64_t>(*engine);
  const auto* first = find<double>(*rule, "cudnn_version_start");
  const auto* end = find<double>(*rule, "cudnn_version_end");
  if (first != nullptr) erratum.first_version = static_cast<std::int64_t>(*first);
  // -1 means that there is no end.
  if (end != nullptr && *end >= 0) erratum.end_version = static_cast<std::int64_t>(*end);
  return erratum;
}

// Returns the rules of the file that the environment variable names. Each file name is read once.
std::shared_ptr<const std::vector<Erratum>> file_errata() {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const std::vector<Erratum>>> read;
  const char* path = std::getenv(kFileVariable);
  if (path == nullptr || *path == '\0') return std::make_shared<std::vector<Erratum>>();
  const std::lock_guard lock(mutex);
  auto& errata = read[path];
  if (errata == nullptr) {
    std::ifstream file(path);
    TORCHALGO_CHECK(file.good(),
                    "TA5107 {}: cannot read '{}': name a file that exists, or unset the variable",
                    kFileVariable, path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    errata = std::make_shared<std::vector<Erratum>>(parse_errata(text));
  }
  return errata;
}

const Erratum* find(const std::vector<Erratum>& errata, Pattern pattern, std::int64_t engine,
                    std::size_t version, std::string_view isa) {
  const auto number = static_cast<std::int64_t>(version);
  for (const Erratum& erratum : errata) {
    if (erratum.engine == engine && number >= erratum.first_version &&
        number < erratum.end_version && (erratum.isa.empty() || erratum.isa == isa) &&
        (erratum.operation.empty() || erratum.operation == operation_of(pattern))) {
      return &erratum;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<Erratum> parse_errata(std::string_view json) {
  const Json all = JsonReader(json).read_all();
  const auto* object = std::get_if<std::map<std::string, Json>>(&all.value);
  const auto* rules = object != nullptr ? find<std::vector<Json>>(*object, "rules") : nullptr;
  TORCHALGO_CHECK(rules != nullptr,
                  "TA5107 {}: got JSON without the list \"rules\", expected an object that has it",
                  kFileVariable);
  std::vector<Erratum> errata;
  for (const Json& rule : *rules) errata.push_back(to_erratum(rule));
  return errata;
}

std::optional<std::string> errata_refusal(Pattern pattern, std::int64_t engine, std::size_t version,
                                          std::string_view isa) {
  if (const Erratum* known = find(known_errata(), pattern, engine, version, isa)) {
    return fmt::format("is known to compute wrong results or to fail ({})", known->id);
  }
  const auto from_file = file_errata();
  if (const Erratum* rule = find(*from_file, pattern, engine, version, isa)) {
    return fmt::format("the rule '{}' of {} refuses it", rule->id, kFileVariable);
  }
  return std::nullopt;
}

}  // namespace torchalgo::cudnn

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cudnn_algo/api.h"

namespace torchalgo::cudnn {

/// A failed call of cuDNN. The text has the status and the reason.
class StatusError : public Error {
 public:
  StatusError(Status status, const std::string& text) : Error(text), status_(status) {}
  [[nodiscard]] Status status() const { return status_; }

 private:
  Status status_;
};

/// Returns the text of a status: "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH (3007): <cuDNN's last
/// error of this thread>".
[[nodiscard]] std::string describe(const Api& api, Status status);

/// Checks the status of a call. @throws StatusError  naming `what`, unless `status` is kSuccess.
void check(const Api& api, Status status, std::string_view what);

namespace detail {
/// The attribute type that a C++ type is passed as. Code with any other type does not link.
template <typename T>
extern const AttributeType kTypeOf;
template <>
inline constexpr AttributeType kTypeOf<bool> = AttributeType::kBoolean;
template <>
inline constexpr AttributeType kTypeOf<std::int64_t> = AttributeType::kInt64;
template <>
inline constexpr AttributeType kTypeOf<float> = AttributeType::kFloat;
template <>
inline constexpr AttributeType kTypeOf<double> = AttributeType::kDouble;
template <>
inline constexpr AttributeType kTypeOf<char> = AttributeType::kChar;
template <>
inline constexpr AttributeType kTypeOf<DataType> = AttributeType::kDataType;
template <>
inline constexpr AttributeType kTypeOf<ConvolutionMode> = AttributeType::kConvolutionMode;
template <>
inline constexpr AttributeType kTypeOf<PointwiseMode> = AttributeType::kPointwiseMode;
template <>
inline constexpr AttributeType kTypeOf<HeuristicMode> = AttributeType::kHeuristicMode;
template <>
inline constexpr AttributeType kTypeOf<NumericalNote> = AttributeType::kNumericalNote;
template <>
inline constexpr AttributeType kTypeOf<BehaviorNote> = AttributeType::kBehaviorNote;
}  // namespace detail

/// A backend descriptor that is destroyed with its owner. `api` must outlive it. cuDNN copies the
/// descriptors that are set as attributes, but the documentation does not promise this. So the
/// caller must keep the parts.
class OwnedDescriptor {
 public:
  /// @throws StatusError
  OwnedDescriptor(const Api& api, DescriptorType type);
  OwnedDescriptor(OwnedDescriptor&& other) noexcept
      : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~OwnedDescriptor() {
    if (raw_ != nullptr) static_cast<void>(api_->destroy_descriptor(raw_));
  }

  [[nodiscard]] Descriptor get() const { return raw_; }
  [[nodiscard]] const Api& api() const { return *api_; }

  /// Sets an attribute to plain values. The attribute type follows from T.
  template <typename T>
  void set(AttributeName name, std::span<const T> values) {
    set_raw(name, detail::kTypeOf<T>, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename T>
  void set(AttributeName name, const std::vector<T>& values) {
    set(name, std::span<const T>(values));
  }
  template <typename T>
  void set(AttributeName name, const T& value) {
    set_raw(name, detail::kTypeOf<T>, 1, &value);
  }
  void set(AttributeName name, const OwnedDescriptor& part) {
    const Descriptor raw = part.get();
    set_raw(name, AttributeType::kDescriptor, 1, &raw);
  }
  /// Sets an attribute. @throws StatusError  naming the attribute.
  void set_raw(AttributeName name, AttributeType type, std::int64_t count, const void* values);

  /// Reads one value. @throws StatusError
  template <typename T>
  [[nodiscard]] T read(AttributeName name) const {
    T value{};
    read_raw(name, detail::kTypeOf<T>, 1, &value);
    return value;
  }
  /// Reads at most `capacity` values.
  template <typename T>
  [[nodiscard]] std::vector<T> read_list(AttributeName name, std::int64_t capacity) const {
    std::vector<T> values(static_cast<std::size_t>(capacity));
    const auto count = read_raw(name, detail::kTypeOf<T>, capacity, values.data());
    values.resize(static_cast<std::size_t>(count < capacity ? count : capacity));
    return values;
  }
  /// Reads values and returns the count that cuDNN reports. @throws StatusError
  std::int64_t read_raw(AttributeName name, AttributeType type, std::int64_t capacity,
                        void* values) const;

  /// Finalizes the descriptor and returns cuDNN's status. An engine that cannot run the problem
  /// reports it here.
  [[nodiscard]] Status try_finalize();
  /// Finalizes the descriptor. @throws StatusError  naming `what`.
  void finalize(std::string_view what);

 private:
  const Api* api_;
  Descriptor raw_ = nullptr;
};

}  // namespace torchalgo::cudnn

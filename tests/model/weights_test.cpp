// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <array>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/gradients.hpp"
#include "model/weights_file.hpp"
#include "starpipe/model/safetensors.hpp"
#include "support/floats.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

ModelConfig saved_gpt() { return small("gpt", {{"hidden", 8}, {"context", 4}}); }

class Weights : public ::testing::Test {
 protected:
  /// Applies `change` to the saved file's tensors and writes them to another file.
  template <class Change>
  std::filesystem::path changed(Change change) {
    auto tensors = read_safetensors(file_);
    change(tensors);
    write_safetensors(folder_ / "changed.safetensors", tensors, {{"format", "pt"}});
    return folder_ / "changed.safetensors";
  }
  template <class Change>
  void expect_refused(Change change, const std::string& part) {
    const auto file = changed(change);
    expect_input_error([&] { load_weights(file, network_); }, file.string() + ": " + part);
  }

  void SetUp() override { save_weights(file_, network_, parameters_, {{"step", "12"}}); }

  Folder folder_;
  std::filesystem::path file_ = folder_ / "w.safetensors";
  Network network_ = build_network(saved_gpt(), 1, 2);
  std::vector<Floats> parameters_ = start_parameters(network_, 5);
};

TEST_F(Weights, RoundTripThroughOtherCuts) {
  EXPECT_EQ(load_weights(file_, network_), parameters_);
  EXPECT_EQ(joined(load_weights(file_, build_network(saved_gpt(), 3, 4))), joined(parameters_));
  EXPECT_EQ(joined(load_weights(file_, build_network(saved_gpt(), 1, 1))), joined(parameters_));
  std::map<std::string, std::string> metadata;
  read_safetensors(file_, &metadata);
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"format", "pt"},
                                                          {"model", "gpt"},
                                                          {"layers", "2"},
                                                          {"hidden", "8"},
                                                          {"heads", "2"},
                                                          {"context", "4"},
                                                          {"vocabulary", "256"},
                                                          {"tied", "false"},
                                                          {"step", "12"}}));
}

TEST_F(Weights, OfATree) {
  ModelConfig config;
  config.kind = "mlp";
  config.options["branches"] = 2;
  const Network tree = build_network(config, 1, 5);
  const auto parameters = start_parameters(tree, 3);
  save_weights(folder_ / "tree", tree, parameters);
  EXPECT_EQ(load_weights(folder_ / "tree", tree), parameters);
}

TEST_F(Weights, OfShardsArePiecesOfTheTensors) {
  for (const char* key : {"tensor", "vocabulary"}) {
    ModelConfig config = saved_gpt();
    if (key == std::string("tensor")) config.options["tensor"] = std::vector<int>{2};
    if (key == std::string("vocabulary")) config.vocabulary.shards = 3;
    const Network shards = build_network(config, 1, 2);
    const auto loaded = load_weights(file_, shards);
    EXPECT_EQ(loaded, start_parameters(shards, 5)) << key;
    for (const auto& [name, tensor] : joined_tensors(shards, loaded))
      EXPECT_EQ(tensor.values, joined_tensors(network_, parameters_).at(name).values) << name;
    save_weights(folder_ / "shards", shards, loaded);
    EXPECT_EQ(load_weights(folder_ / "shards", network_), parameters_) << key;
  }
}

// Ranks read the sets of their own stages only.
TEST_F(Weights, OfASetAreReadAlone) {
  const auto file =
      changed([](auto& tensors) { tensors["transformer.ln_f.bias"].values[3] = std::nanf(""); });
  WeightsFile weights(file, network_, FileContents::start_weights);
  for (const bool has_nan : {false, true}) {
    Floats values(network_.sets()[has_nan ? 1 : 0].size);
    if (has_nan) {
      expect_input_error([&] { weights.read(network_.sets()[1], values); },
                         file.string() + ": tensor transformer.ln_f.bias: value 3 is NaN");
    } else {
      weights.read(network_.sets()[0], values);
      EXPECT_EQ(values, parameters_[0]);
    }
  }
}

TEST_F(Weights, OfAPlaceOrWithEqualNumbersAreTheSame) {
  const auto copy = changed([](auto&) {});
  const auto other = [&] {
    auto tensors = read_safetensors(file_);
    tensors.at("transformer.ln_f.bias").values[3] += 1;
    write_safetensors(folder_ / "other", tensors, {});
    return folder_ / "other";
  }();
  const auto open = [&](const std::filesystem::path& file) {
    return WeightsFile(file, network_, FileContents::start_weights);
  };
  EXPECT_EQ(open(file_).place(), open(file_).place());
  EXPECT_NE(open(file_).place(), open(copy).place());
  EXPECT_EQ(open(file_).digest(), open(copy).digest()) << "other metadata";
  EXPECT_NE(open(file_).digest(), open(other).digest());
}

TEST_F(Weights, StartFromTheFileOfTheConfiguration) {
  ModelConfig config = saved_gpt();
  config.init = file_;
  EXPECT_EQ(start_parameters(build_network(config, 1, 2), 99), parameters_);
}

// Parameters are saved in pieces of any order; a file has at least one tensor.
TEST_F(Weights, SaveInSeveralFilesAndOtherTypes) {
  const Network shards =
      build_network(small("gpt", {{"hidden", 8}, {"context", 4}, {"tensor", std::vector<int>{2}}}), 1, 2);
  for (const StoredType type : {StoredType::fp32, StoredType::bf16}) {
    for (const std::uint64_t limit : {1U, 600U, 1U << 20U}) {
      SCOPED_TRACE(limit);
      const SaveFormat format{.type = type, .max_shard_size = limit};
      const auto file =
          folder_ / (std::to_string(limit) + (type == StoredType::fp32 ? "" : "b") + ".safetensors");
      const WeightsLayout layout(file, shards, format);
      EXPECT_EQ(layout.files().size() == 1, limit == 1U << 20U);
      EXPECT_EQ(layout.files().size() == read_safetensors(file_).size(), limit == 1);
      const SetValues pieces = load_weights(file_, shards);
      save_weights(file, shards, pieces, {}, format);
      const auto written = layout.index() ? layout.index()->path : file;
      EXPECT_EQ(std::filesystem::exists(file), !layout.index());
      const SetValues loaded = load_weights(written, network_);
      for (std::size_t set = 0; set < loaded.size(); ++set) {
        for (std::size_t i = 0; i < loaded[set].size(); ++i) {
          if (type == StoredType::fp32)
            EXPECT_EQ(loaded[set][i], parameters_[set][i]);
          else
            EXPECT_NEAR(loaded[set][i], parameters_[set][i], std::abs(parameters_[set][i]) / 256);
        }
      }
      for (const auto& part : layout.files()) EXPECT_EQ(std::filesystem::file_size(part.path), part.bytes);
    }
  }
  EXPECT_EQ(shard_name("a/w.safetensors", 2, 13), "a/w-00002-of-00013.safetensors");
  EXPECT_EQ(shard_name("w", 2, 13), "w-00002-of-00013");
}

/// Writes the saved file's tensors to files of their own by turns, and an index of them.
class Sharded : public Weights {
 protected:
  void SetUp() override {
    Weights::SetUp();
    constexpr std::size_t files = 3;
    std::array<std::map<std::string, Tensor>, files> parts;
    std::size_t number = 0;
    for (auto& [name, tensor] : read_safetensors(file_)) {
      const std::size_t part = number++ % files;
      index_["weight_map"][name] = name_of(part);
      parts[part][name] = std::move(tensor);
    }
    for (std::size_t part = 0; part < files; ++part)
      write_safetensors(folder_ / name_of(part), parts[part], {{"format", "pt"}});
    index_["metadata"]["total_size"] = 1;
  }

  static std::string name_of(std::size_t part) { return "w-" + std::to_string(part) + ".safetensors"; }
  [[nodiscard]] std::filesystem::path written(const nlohmann::json& index) const {
    return folder_.write("model.safetensors.index.json", index.dump());
  }
  template <class Change>
  void expect_refused(Change change, const std::string& part) {
    nlohmann::json index = index_;
    change(index);
    const auto file = written(index);
    expect_input_error([&] { load_weights(file, network_); }, part);
    expect_input_error([&] { check_weights(file, network_); }, part);
  }

  nlohmann::json index_;
};

TEST_F(Sharded, LoadAsOneFile) {
  const auto file = written(index_);
  EXPECT_EQ(load_weights(file, network_), parameters_);
  EXPECT_EQ(load_weights(file, network_, FileContents::weights), parameters_);
  EXPECT_NO_THROW(check_weights(file, network_));
  index_["weight_map"].erase("lm_head.weight");
  expect_input_error([&] { load_weights(written(index_), network_); },
                     "tensor lm_head.weight: " + file.string() + " does not say that it is here");
}

TEST_F(Sharded, FilesMayBeInFoldersNextToTheIndex) {
  std::filesystem::create_directories(folder_ / "a" / "b");
  std::filesystem::rename(folder_ / name_of(1), folder_ / "a" / "b" / name_of(1));
  for (auto& part : index_["weight_map"])
    if (part == name_of(1)) part = "a/b/" + name_of(1);
  EXPECT_EQ(load_weights(written(index_), network_), parameters_);
}

// transformers lists the head of a tied model in the index and does not write it.
TEST_F(Sharded, TheIndexMayNameATiedHeadThatIsAbsent) {
  ModelConfig config = saved_gpt();
  config.options["tied"] = true;
  const Network tied = build_network(config, 1, 2);
  const std::string part = index_["weight_map"]["lm_head.weight"];
  auto tensors = read_safetensors(folder_ / part);
  tensors.erase("lm_head.weight");
  write_safetensors(folder_ / part, tensors, {});
  const auto file = written(index_);
  const auto whole = changed([](auto& all) { all.erase("lm_head.weight"); });
  EXPECT_EQ(load_weights(file, tied), load_weights(whole, tied));
  EXPECT_NO_THROW(check_weights(file, tied));
  expect_input_error([&] { load_weights(file, network_); }, part + ": tensor lm_head.weight: is missing");
}

TEST_F(Sharded, FilesThatDoNotFitTheirIndexAreNamed) {
  const std::string bias = "transformer.ln_f.bias";
  const std::string weight = "transformer.ln_f.weight";
  const auto path = [&](const std::string& name) { return (folder_ / name).string(); };
  const std::string right = index_["weight_map"][bias];
  const std::string wrong = index_["weight_map"][weight];
  ASSERT_NE(right, wrong);
  expect_refused([&](auto& index) { index["weight_map"][bias] = wrong; },
                 path(std::min(right, wrong)) + ": tensor " + bias);
  expect_refused([&](auto& index) { index["weight_map"]["more"] = right; },
                 path(right) + ": tensor more: is missing");
  expect_refused([&](auto& index) { index["weight_map"][bias] = "w-7.safetensors"; },
                 path(right) + ": tensor " + bias);
  expect_refused([&](auto& index) { index["weight_map"]["more"] = "w-7.safetensors"; },
                 path("w-7.safetensors") + ": cannot be read: No such file");
  for (const char* name : {"../w-0.safetensors", "/etc/passwd", "", ".", "a/", "a/../b"})
    expect_refused([&](auto& index) { index["weight_map"][bias] = name; },
                   bias + ": \"" + name + "\" is not");
  expect_refused([&](auto& index) { index["weight_map"][bias] = 3; }, bias + ": 3 is not");
  expect_refused([&](auto& index) { index["weight_map"][bias] = {1, 2}; }, bias + ": an array is not");
  expect_refused([&](auto& index) { index["weight_map"] = nlohmann::json::object(); }, "no \"weight_map\"");
  expect_refused([&](auto& index) { index.erase("weight_map"); }, "no \"weight_map\"");
  expect_refused([&](auto& index) { index = nlohmann::json::array(); }, "no \"weight_map\"");
  for (std::size_t part = 0; part < 3; ++part) std::filesystem::remove(folder_ / name_of(part));
  expect_input_error([&] { load_weights(written(index_), network_); },
                     path("w-0.safetensors") + ": cannot be read: No such file");
  expect_input_error([&] { load_weights(folder_ / "absent.json", network_); },
                     path("absent.json") + ": No such file");
  expect_input_error([&] { load_weights(folder_.write("text.json", "{"), network_); }, "no \"weight_map\"");
  std::filesystem::create_directory(folder_ / "folder.json");
  expect_input_error([&] { load_weights(folder_ / "folder.json", network_); },
                     "folder.json: is a directory without .safetensors files");
}

// As a user names a model that was published as several files, or a folder of checkpoints.
TEST_F(Weights, OfADirectoryAreNamed) {
  const auto expect_refused = [&](const std::string& problem) {
    expect_input_error([&] { load_weights(folder_ / "model", network_); }, "model: is " + problem);
  };
  std::filesystem::create_directory(folder_ / "model");
  expect_refused("a directory without .safetensors files");
  for (const char* file : {"z.safetensors", "b.safetensors", "config.json", "a.bin"})
    static_cast<void>(folder_.write(std::string("model/") + file, "{}"));
  expect_refused("a directory; give " + (folder_ / "model/b.safetensors").string());
  static_cast<void>(folder_.write("model/model.safetensors.index.json", "{}"));
  expect_refused("a directory; give " + (folder_ / "model/model.safetensors.index.json").string());
  std::filesystem::create_directory(folder_ / "model/step-00000002");
  expect_refused("a directory of checkpoints; train --resume --save-weights writes the weights of one");
}

TEST_F(Weights, NamesMayLackTheirPrefix) {
  const auto file = changed([](auto& tensors) {
    std::map<std::string, Tensor> bare;
    for (auto& [name, tensor] : tensors) {
      bare[name.starts_with("transformer.") ? name.substr(12) : name] = tensor;
    }
    tensors = bare;
  });
  EXPECT_EQ(load_weights(file, network_), parameters_);
}

TEST_F(Weights, ATiedHeadIsTheEmbedding) {
  const auto file = changed([](auto& tensors) { tensors.erase("lm_head.weight"); });
  const auto loaded = load_weights(file, network_);
  const std::size_t size = 256 * 8;
  const Floats head(loaded[1].end() - static_cast<std::ptrdiff_t>(size), loaded[1].end());
  const Floats embedding(parameters_[0].begin(), parameters_[0].begin() + static_cast<std::ptrdiff_t>(size));
  EXPECT_EQ(head, embedding);
}

TEST_F(Weights, OnlyStartWeightsAreCompleted) {
  const auto expect = [&](const std::filesystem::path& file, const Network& network,
                          const std::string& part) {
    EXPECT_NO_THROW(load_weights(file, network));
    for (const FileContents contents : {FileContents::weights, FileContents::gradients})
      expect_input_error([&] { load_weights(file, network, contents); }, file.string() + ": tensor " + part);
  };
  expect(changed([](auto& tensors) { tensors.erase("lm_head.weight"); }), network_,
         "lm_head.weight: is missing");
  ModelConfig config = saved_gpt();
  config.options["vocabulary"] = 257;
  expect(file_, build_network(config, 1, 2),
         "transformer.wte.weight: has shape [256, 8], the model has [257, 8]");
  EXPECT_EQ(load_weights(file_, network_, FileContents::weights), parameters_);
  EXPECT_EQ(load_weights(file_, network_, FileContents::gradients), parameters_);
}

TEST_F(Weights, ATiedHeadHasNoGradientOfItsOwn) {
  ModelConfig config = saved_gpt();
  config.options["tied"] = true;
  const Network tied = build_network(config, 1, 2);
  const auto file =
      changed([](auto& tensors) { tensors["lm_head.weight"] = tensors["transformer.wte.weight"]; });
  EXPECT_EQ(load_weights(file, tied, FileContents::weights), load_weights(file, tied));
  expect_input_error([&] { load_weights(file, tied, FileContents::gradients); },
                     file.string() + ": tensor lm_head.weight: is not one of the model's");
}

TEST_F(Weights, MasksOfOldCheckpointsAreIgnored) {
  const auto file = changed([](auto& tensors) {
    tensors["transformer.h.0.attn.bias"] = {{1, 1, 2, 2}, {1, 0, 1, 1}};
    tensors["h.1.attn.masked_bias"] = {{}, {-1e4f}};
  });
  EXPECT_EQ(load_weights(file, network_), parameters_);
}

TEST_F(Weights, TensorsThatDoNotFitAreNamed) {
  expect_refused([](auto& t) { t.erase("transformer.h.1.ln_2.bias"); },
                 "tensor transformer.h.1.ln_2.bias: is missing");
  expect_refused([](auto& t) { t.erase("transformer.wte.weight"); },
                 "tensor transformer.wte.weight: is missing");
  expect_refused(
      [](auto& t) {
        t["transformer.h.2.ln_1.bias"] = {{1}, {1}};
      },
      "tensor transformer.h.2.ln_1.bias: is not one of the model's");
  expect_refused(
      [](auto& t) {
        t["transformer.ln_f.bias"] = {{4, 2}, Floats(8)};
      },
      "tensor transformer.ln_f.bias: has shape [4, 2], the model has [8]");
  expect_refused(
      [](auto& t) {
        std::swap(t["transformer.h.0.mlp.c_fc.weight"].shape[0],
                  t["transformer.h.0.mlp.c_fc.weight"].shape[1]);
      },
      "tensor transformer.h.0.mlp.c_fc.weight: has shape [32, 8], the model has [8, 32]");
  expect_refused([](auto& t) { t["ln_f.bias"] = t["transformer.ln_f.bias"]; },
                 "tensor transformer.ln_f.bias: is there twice");
  expect_input_error([&] { load_weights(folder_ / "absent", network_); }, (folder_ / "absent").string());
}

TEST_F(Weights, MistakesOfOtherProgramsGetAHint) {
  expect_refused(
      [](auto& t) {
        std::swap(t["transformer.h.0.attn.c_attn.weight"].shape[0],
                  t["transformer.h.0.attn.c_attn.weight"].shape[1]);
      },
      "tensor transformer.h.0.attn.c_attn.weight: has shape [24, 8], the model has [8, 24]: it seems "
      "transposed");
  expect_refused(
      [](auto& t) {
        std::map<std::string, Tensor> compiled;  // as torch.compile names them
        for (auto& [name, tensor] : t) compiled["_orig_mod." + name] = tensor;
        t = compiled;
      },
      "tensor transformer.wte.weight: is missing; the file has _orig_mod.transformer.wte.weight: remove "
      "\"_orig_mod.\" from its names");
  expect_refused([](auto& t) { std::erase_if(t, [](const auto& e) { return e.first.ends_with(".bias"); }); },
                 "tensor transformer.h.0.ln_1.bias: is missing; the file has no biases");
}

// Other programs may have an entry "model" of their own.
TEST_F(Weights, MetadataOfOtherProgramsSayNothing) {
  for (const auto& [key, value] : {std::pair{"model", "my-model"}, std::pair{"model", "llama"}}) {
    write_safetensors(folder_ / "other", read_safetensors(file_), {{key, value}});
    EXPECT_EQ(load_weights(folder_ / "other", network_), parameters_) << value;
  }
  write_safetensors(folder_ / "own", read_safetensors(file_), {{"model", "llama"}, {"heads", "2"}});
  expect_input_error([&] { load_weights(folder_ / "own", network_); }, "was saved with model llama");
}

// Positions are learned, so a model of a shorter context has the first ones.
TEST_F(Weights, AShorterContextHasTheFirstPositions) {
  for (const bool is_tied : {false, true}) {
    const auto short_of = [&](int context) {
      ModelConfig config = small("gpt", {{"hidden", 8}, {"context", context}, {"tied", is_tied}});
      return build_network(config, 1, 2);
    };
    const auto file = changed([&](auto& tensors) {
      if (is_tied) tensors.erase("lm_head.weight");
    });
    const auto cropped = joined_tensors(short_of(3), load_weights(file, short_of(3)));
    auto expected = read_safetensors(file);
    Tensor& positions = expected["transformer.wpe.weight"];
    positions.shape[0] = 3;
    positions.values.resize(std::size_t{3} * 8);
    for (const auto& [name, tensor] : expected) {
      EXPECT_EQ(cropped.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(cropped.at(name).values, tensor.values) << name;
    }
    EXPECT_NO_THROW(check_weights(file, short_of(3)));
    EXPECT_EQ(load_weights(file, short_of(4)).size(), short_of(4).sets().size());
    expect_input_error([&] { load_weights(file, short_of(5)); },
                       "tensor transformer.wpe.weight: has shape [4, 8], the model has [5, 8]");
  }
  EXPECT_NO_THROW(load_weights(file_, build_network(small("gpt", {{"hidden", 8}, {"context", 2}}), 1, 2)))
      << "own metadata with a longer context";
}

TEST_F(Weights, RefusesAnotherConfigurationOfTheSameShapes) {
  ModelConfig config = saved_gpt();
  config.options["heads"] = 4;
  expect_input_error([&] { load_weights(file_, build_network(config, 1, 2)); },
                     file_.string() + ": was saved with heads 2, the configuration has 4");
}

}  // namespace
}  // namespace starpipe::model

// Runs scenarios.cc in processes of their own.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "harness.h"

class Process {
 public:
  // `environment`: what is set besides, as NAME=VALUE.
  Process(std::vector<std::string> words, std::vector<std::string> environment) {
    int in[2], out[2];
    REQUIRE(pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    words.insert(words.begin(), SIMCUDA_SCENARIOS);
    std::vector<char*> argv, envp;
    for (char** inherited = environ; *inherited; ++inherited) envp.push_back(*inherited);
    for (std::string& variable : environment) envp.insert(envp.begin(), variable.data());  // the first of a name counts
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      dup2(out[1], 2);
      execve(argv[0], argv.data(), envp.data());
      _exit(97);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(to_);
    close(from_);
  }
  // One command to a peer, and its answer.
  std::string ask(const std::string& command) {
    const std::string line = command + "\n";
    REQUIRE(write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    std::string answer;
    for (char c = 0; read(from_, &c, 1) == 1 && c != '\n';) answer += c;
    return answer;
  }
  // The wait status, and in `output` what it printed.
  int end() {
    char buffer[4096];
    for (ssize_t n; (n = read(from_, buffer, sizeof buffer)) > 0;) output.append(buffer, static_cast<size_t>(n));
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  void kill_now() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  std::string output;

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

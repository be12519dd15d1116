#!/usr/bin/env bash
# Builds llama.cpp for this machine's processors: the peer of `furrow-bench llama`. Some minutes, once; nothing is installed.
#
#     tests/peers/llama_cpp.sh [DIR]      DIR (.cache/llama.cpp) then holds source/, build/bin/llama-batched-bench and llama-logits
#
# Needs a C++17 compiler and Python with pip and venv (FURROW_PEER_PYTHON, python3). The source is the one that the llama-cpp-python
# package carries, its hash pinned; cmake and ninja come as wheels. JOBS=2 says how many compilers run at once [one a core].
set -euo pipefail

peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${1:-$peers/../../.cache/llama.cpp}
python=${FURROW_PEER_PYTHON:-python3}
version=0.3.36
hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

mkdir -p "$dir"
cd "$dir"

# Another version's source and build go: figures name one.
if [ "$(cat version 2>/dev/null)" != "$version" ]; then
    rm -rf source build tools sdist version
    mkdir sdist
    echo "llama-cpp-python==$version --hash=$hash" >sdist/requirements.txt
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --require-hashes -r sdist/requirements.txt -d sdist
    mkdir source
    tar -xzf "sdist/llama_cpp_python-$version.tar.gz" -C source --strip-components=3 "llama_cpp_python-$version/vendor/llama.cpp"
    rm -rf sdist
    "$python" -m venv tools
    tools/bin/pip install --quiet cmake==4.4.4 ninja==1.13.2
    echo "$version" >version
fi

export PATH=$PWD/tools/bin:$PATH
options=(
    -DCMAKE_BUILD_TYPE=Release
    -DGGML_NATIVE=ON
    -DLLAMA_BUILD_APP=OFF
    -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF
    -DLLAMA_BUILD_TESTS=OFF
    -DLLAMA_OPENSSL=OFF
)
cmake -S source -B build -G Ninja "${options[@]}" >build.log
cmake --build build --target llama-batched-bench -j "${JOBS:-$(nproc)}"
"${CXX:-c++}" -std=c++17 -O2 -Wall -I source/include -I source/ggml/include "$peers/llama_logits.cpp" \
    -L build/bin -lllama -lggml-base -Wl,-rpath,"$PWD/build/bin" -o build/bin/llama-logits
echo "llama.cpp is in $PWD"

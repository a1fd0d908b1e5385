# Imported targets torch::<library> straight from an installed torch wheel. find_package(Torch) is not used:
# with a CUDA wheel it stops where no CUDA toolkit is installed, and it links libtorch_cuda everywhere.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import os, torch; print(torch.__version__.split('+')[0], os.path.dirname(torch.__file__), torch.version.cuda or '', sep=';')"
  OUTPUT_VARIABLE _torch
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE _failed)
if(_failed)
  message(FATAL_ERROR "torchalgo needs torch >= 2.11 in ${Python_EXECUTABLE}: pip install torch, then build "
                      "with pip install --no-build-isolation .")
endif()
list(GET _torch 0 TORCHALGO_TORCH_VERSION)
list(GET _torch 1 TORCHALGO_TORCH_DIR)
list(GET _torch 2 TORCHALGO_TORCH_CUDA)
if(TORCHALGO_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torchalgo needs torch >= 2.11, found ${TORCHALGO_TORCH_VERSION}")
endif()

# Headers only: what may not link torch (base, ir) still finds fmt.
add_library(torch_headers INTERFACE)
target_include_directories(torch_headers SYSTEM INTERFACE
  ${TORCHALGO_TORCH_DIR}/include ${TORCHALGO_TORCH_DIR}/include/torch/csrc/api/include)

foreach(_name c10 torch_cpu torch torch_python)
  add_library(torch::${_name} SHARED IMPORTED)
  set_target_properties(torch::${_name} PROPERTIES
    IMPORTED_LOCATION ${TORCHALGO_TORCH_DIR}/lib/lib${_name}.so
    INTERFACE_LINK_LIBRARIES torch_headers)
endforeach()

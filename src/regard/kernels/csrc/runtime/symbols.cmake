# Fails unless every external symbol of OBJECTS is in the namespace NAMESPACE: its mangled name contains that name,
# after its length. Any other symbol could also be in an object of another instruction set, and the linker keeps one of
# the two, perhaps one that the processor cannot run.
#
#     cmake -DNM=nm -DNAMESPACE=avx2 -DOBJECTS=kernels.cpp.o -P symbols.cmake
execute_process(
  COMMAND ${NM} --extern-only --defined-only ${OBJECTS}
  OUTPUT_VARIABLE listed RESULT_VARIABLE failed ERROR_VARIABLE why)
if(failed)
  message(FATAL_ERROR "${NM} cannot list the symbols of ${OBJECTS}: ${why}")
endif()
string(LENGTH "${NAMESPACE}" length)
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
set(foreign ${lines})
list(FILTER foreign INCLUDE REGEX " [A-Zuvw] ")
list(FILTER foreign EXCLUDE REGEX "[^0-9]${length}${NAMESPACE}")
if(NOT lines)
  message(FATAL_ERROR "${OBJECTS} has no symbols")
elseif(foreign)
  list(JOIN foreign "\n" foreign)
  message(FATAL_ERROR
    "Compiled for ${NAMESPACE}, and not in its namespace:\n${foreign}\n"
    "Put it into the namespace, or make it REGARD_INLINE.")
endif()

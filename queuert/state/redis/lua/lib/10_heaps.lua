-- A heap: a list whose first item goes before all others.

-- Restores the order of a heap in which an item, the first one unless another is named, may be too early.
local function sink(heap, goes_before, from)
    local at = from or 1
    while true do
        local least, left = at, 2 * at
        if heap[left] and goes_before(heap[left], heap[least]) then least = left end
        if heap[left + 1] and goes_before(heap[left + 1], heap[least]) then least = left + 1 end
        if least == at then return end
        heap[at], heap[least] = heap[least], heap[at]
        at = least
    end
end

-- Removes the first item of a heap.
local function remove_first(heap, goes_before)
    heap[1] = heap[#heap]
    heap[#heap] = nil
    if heap[1] then sink(heap, goes_before) end
end

-- Makes a list a heap.
local function make_heap(list, goes_before)
    for at = math.floor(#list / 2), 1, -1 do sink(list, goes_before, at) end
end

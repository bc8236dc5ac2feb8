-- A page of batches, newest first. ARGV: prefix, '', '', after id ('' is the newest), most
-- Returns {{id, fields, now ms}, ...}
local most, page, from = tonumber(ARGV[5]), {}, ARGV[4] == '' and '+' or '(' .. ARGV[4]
for _ = 1, 20 do
  local ids = redis.call('ZREVRANGEBYLEX', P .. 'batches', from, '-', 'LIMIT', 0, most)
  for _, each in ipairs(ids) do
    from = '(' .. each
    local fields = redis.call('HGETALL', P .. 'batch:' .. each)
    if #fields == 0 then
      redis.call('ZREM', P .. 'batches', each) -- its time is over
    elseif #page < most then
      page[#page + 1] = {each, fields, whole(now_ms())}
    end
  end
  if #ids == 0 or #page == most then break end
end
return page
